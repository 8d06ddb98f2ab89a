// Writes a configuration in the two published forms; model/config.h reads them back.
//
//   write_file_atomic(dir + "/config.json", published_json(config).dump(1));
//   write_file_atomic(dir + "/inference/config.json", official_json(config).dump(1));
#pragma once

#include "model/config.h"

namespace spark::model {

Json published_json(const ModelConfig& config);  // nested: text_config, vision_config
Json official_json(const ModelConfig& config);   // flat: dim, n_layers, ...

}  // namespace spark::model
