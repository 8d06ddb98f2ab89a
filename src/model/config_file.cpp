#include "model/config_file.h"

#include "common/file.h"
#include "common/json.h"

namespace spark::model {

ModelConfig load_model_config(const std::string& path) {
  return read_model_config(parse_json(read_file(path, kMaxConfigBytes), path), path);
}

}  // namespace spark::model
