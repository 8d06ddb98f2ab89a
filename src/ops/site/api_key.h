// Where the key of the service's API is found, for commands that ask the API themselves. The files are on the
// nodes, so finding it is a piece of shell that runs on the head. The key must not stand in an argument list
// or in a log: the piece travels through standard input, and whoever runs it keeps its output.
#pragma once

#include <string>

#include "ops/site/site.h"

namespace spark::ops {

struct ApiKeySource {
  std::string given;             // from this program's own environment; wins
  std::string secret_file;       // on the head: sets `variable`
  std::string variable;          // what the server reads
  bool plain_variables = false;  // secret_file is Docker's: NAME=value as it stands, no shell
  std::string key_file;          // on the head: one key, nothing else

  bool empty() const { return given.empty() && secret_file.empty() && key_file.empty(); }
};

// `given` is $SPARK_API_KEY.
ApiKeySource api_key_source(const Site& site);

// engine.api_key_file as the head has it: in a container's profile it names a path in the container. Empty:
// there is none, or no mount shows it.
std::string api_key_file(const ClusterProfile& profile);

// A POSIX function that prints the key, or nothing: "NAME() { ... }\n". It says nothing when a file cannot be
// read.
std::string api_key_function(const char* name, const ApiKeySource& source);

}  // namespace spark::ops
