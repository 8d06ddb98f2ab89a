// Rules between fields of a ModelConfig; used by config.cpp only.
#pragma once

#include <map>
#include <set>
#include <string>

#include "model/config.h"

namespace spark::model {

// How each field was spelt in the file, and which of them could not be read.
struct FieldOrigins {
  std::map<std::string, std::string, std::less<>> paths;  // nested field name -> path in the file
  std::set<std::string, std::less<>> broken;              // nested field names with a fault of their own
};

// Adds one fault per violated relation. A rule is skipped when a field it needs is broken already.
void check_relations(const ModelConfig& config, const FieldOrigins& origins, Faults& faults);

}  // namespace spark::model
