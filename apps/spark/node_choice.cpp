#include "node_choice.h"

#include "common/json.h"

namespace spark::app {

const ops::Node& find_node(const ops::Site& site, const std::string& name) {
  if (const ops::Node* node = site.nodes.find(name)) return *node;
  std::vector<std::string> names;
  std::string listed;
  for (const ops::Node& node : site.nodes.nodes) {
    names.push_back(node.name);
    listed += (listed.empty() ? "" : ", ") + node.name;
  }
  const auto guess = nearest(name, names);
  throw Error("\"" + name + "\" is not a node", site.nodes_file,
              guess ? "did you mean \"" + *guess + "\"?" : "its nodes are " + listed);
}

}  // namespace spark::app
