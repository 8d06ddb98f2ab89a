// A checkpoint folder as findings: what `spark doctor --model` prints.
#pragma once

#include <string>

#include "ops/site/finding.h"

namespace spark::app {

// Configuration, tokenizer, index, headers, every tensor's presence and shape, length of every shard; with a
// manifest ("HASH  NAME" lines as sha256sum prints them) also the content of every file that it names, which
// reads all of them.
ops::Findings checkpoint_findings(const std::string& folder, const std::string& manifest);

}  // namespace spark::app
