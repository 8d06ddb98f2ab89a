#include "command_tree.h"

#include <CLI/CLI.hpp>
#include <sstream>

namespace spark::app {
namespace {

void collect(const CLI::App& app, const std::string& above, std::vector<CommandEntry>& tree) {
  CommandEntry entry;
  entry.name = app.get_name();
  entry.path = above.empty() ? entry.name : above + " " + entry.name;
  entry.description = app.get_description();
  entry.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    CommandOption row;
    for (const std::string& name : option->get_snames()) row.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) row.names.push_back("--" + name);
    row.description = option->get_description();
    if (row.names.empty()) {
      row.value = option->get_name();
    } else if (option->get_items_expected_max() > 0) {
      row.value = option->get_type_name().empty() ? "VALUE" : option->get_type_name();
      row.value = row.value.substr(0, row.value.find_first_of(": ["));
    }
    entry.options.push_back(std::move(row));
  }
  for (const CLI::App* sub : app.get_subcommands(nullptr)) entry.subcommands.push_back(sub->get_name());
  const std::string path = entry.path;
  tree.push_back(std::move(entry));
  for (const CLI::App* sub : app.get_subcommands(nullptr)) collect(*sub, path, tree);
}

std::string all_names(const CommandEntry& entry) {
  std::string text;
  for (const std::string& name : entry.subcommands) text += name + " ";
  for (const CommandOption& option : entry.options) {
    for (const std::string& name : option.names) text += name + " ";
  }
  if (!text.empty()) text.pop_back();
  return text;
}

// Options that take a value, so that the word after one is not taken for a command.
std::string value_options(const CommandEntry& entry) {
  std::string text;
  for (const CommandOption& option : entry.options) {
    if (option.value.empty()) continue;
    for (const std::string& name : option.names) text += (text.empty() ? "" : "|") + name;
  }
  return text;
}

std::string single_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

const CommandEntry* entry_of(const std::vector<CommandEntry>& tree, const std::string& path) {
  for (const CommandEntry& entry : tree) {
    if (entry.path == path) return &entry;
  }
  return nullptr;
}

// roff takes a leading dot or apostrophe for a request, and a backslash for an escape.
std::string roff(const std::string& text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

std::string roff_options(const CommandEntry& entry) {
  std::string text;
  for (const CommandOption& option : entry.options) {
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
    text += ".TP\n";
    if (names.empty()) {
      text += "\\fI" + roff(option.value) + "\\fR\n";
    } else {
      text += "\\fB" + roff(names) + "\\fR" +
              (option.value.empty() ? "" : " \\fI" + roff(option.value) + "\\fR") + "\n";
    }
    text += roff(option.description.empty() ? "-" : option.description) + "\n";
  }
  return text;
}

}  // namespace

std::vector<CommandEntry> command_tree(const CLI::App& app) {
  std::vector<CommandEntry> tree;
  collect(app, "", tree);
  return tree;
}

std::string bash_completion(const std::vector<CommandEntry>& tree) {
  const std::string program = tree.front().name;
  std::string text = "# Completion of " + program + " for bash: source <(" + program +
                     " completion bash)\n_" + program +
                     "() {\n  local current=${COMP_WORDS[COMP_CWORD]} path=" + program +
                     " i word\n  for ((i = 1; i < COMP_CWORD; ++i)); do\n    word=${COMP_WORDS[i]}\n"
                     "    case \"$path/$word\" in\n";
  for (const CommandEntry& entry : tree) {
    for (const std::string& name : entry.subcommands) {
      text += "      " + single_quoted(entry.path + "/" + name) + ") path+=\" $word\" ;;\n";
    }
  }
  const std::string values = value_options(tree.front());
  text += "      *)\n        case \"$word\" in\n          " + values +
          ") ((++i)) ;;\n        esac ;;\n    esac\n  done\n";
  text += "  local words=\n  case \"$path\" in\n";
  for (const CommandEntry& entry : tree) {
    const bool root = entry.path == program;
    text += "    " + single_quoted(entry.path) + ") words=" +
            single_quoted(all_names(entry) +
                          (root ? "" : " " + all_names({"", "", "", "", tree.front().options, {}}))) +
            " ;;\n";
  }
  text +=
      "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- \"$current\"))\n}\n"
      "complete -o filenames -F _" +
      program + " " + program + "\n";
  return text;
}

std::string zsh_completion(const std::vector<CommandEntry>& tree) {
  const std::string program = tree.front().name;
  std::string text =
      "#compdef " + program + "\n# Completion of " + program + " for zsh: " + program +
      " completion zsh > \"${fpath[1]}/_" + program + "\"\n_" + program +
      "() {\n  local path_so_far=" + program +
      " i word\n  local -a items\n  for ((i = 2; i < CURRENT; ++i)); do\n    word=${words[i]}\n"
      "    case \"$path_so_far/$word\" in\n";
  for (const CommandEntry& entry : tree) {
    for (const std::string& name : entry.subcommands) {
      text += "      " + single_quoted(entry.path + "/" + name) + ") path_so_far+=\" $word\" ;;\n";
    }
  }
  text += "      *)\n        case \"$word\" in\n          " + value_options(tree.front()) +
          ") ((++i)) ;;\n        esac ;;\n    esac\n  done\n  case \"$path_so_far\" in\n";
  const auto item = [](const std::string& name, const std::string& description) {
    std::string escaped;
    for (const char c : name) escaped += c == ':' ? std::string("\\:") : std::string(1, c);
    return " " + single_quoted(escaped + ":" + first_line(description));
  };
  for (const CommandEntry& entry : tree) {
    text += "    " + single_quoted(entry.path) + ") items=(";
    for (const std::string& name : entry.subcommands) {
      const CommandEntry* sub = entry_of(tree, entry.path + " " + name);
      text += item(name, sub == nullptr ? "" : sub->description);
    }
    for (const CommandOption& option : entry.options) {
      for (const std::string& name : option.names) text += item(name, option.description);
    }
    text += ") ;;\n";
  }
  return text + "  esac\n  _describe " + single_quoted(program) + " items\n  _files\n}\n_" + program +
         " \"$@\"\n";
}

std::string fish_completion(const std::vector<CommandEntry>& tree) {
  const std::string program = tree.front().name;
  std::string text = "# Completion of " + program + " for fish: " + program + " completion fish | source\n";
  for (const CommandEntry& entry : tree) {
    std::istringstream words(entry.path);
    std::string word, condition;
    words >> word;
    while (words >> word)
      condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    std::string none;
    for (const std::string& name : entry.subcommands) none += " " + name;
    const std::string commands_when = condition + (condition.empty() ? "" : "; and ") +
                                      (none.empty() ? "" : "not __fish_seen_subcommand_from" + none);
    for (const std::string& name : entry.subcommands) {
      const CommandEntry* sub = entry_of(tree, entry.path + " " + name);
      text += "complete -c " + program + " -f -n " + single_quoted(commands_when) + " -a " +
              single_quoted(name) + " -d " +
              single_quoted(sub == nullptr ? "" : first_line(sub->description)) + "\n";
    }
    for (const CommandOption& option : entry.options) {
      if (option.names.empty()) continue;
      text += "complete -c " + program + (condition.empty() ? "" : " -n " + single_quoted(condition));
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      text += std::string(option.value.empty() ? "" : " -r") + " -d " +
              single_quoted(first_line(option.description)) + "\n";
    }
  }
  return text;
}

std::string manual_page(const std::vector<CommandEntry>& tree, const std::string& version) {
  const CommandEntry& program = tree.front();
  std::string text = ".TH SPARK 1 \"\" \"" + roff(program.name + " " + version) + "\" \"User commands\"\n";
  text += ".SH NAME\n" + roff(program.name) + " \\- " + roff(program.description) + "\n";
  text += ".SH SYNOPSIS\n\\fB" + roff(program.name) +
          "\\fR [\\fIsite options\\fR] \\fIcommand\\fR [\\fIoptions\\fR]\n";
  text += ".SH OPTIONS\n" + roff_options(program) + ".SH COMMANDS\n";
  for (size_t i = 1; i < tree.size(); ++i) {
    const CommandEntry& entry = tree[i];
    text += ".SS " + roff(entry.path.substr(program.name.size() + 1)) + "\n" + roff(entry.description) +
            ".\n" + roff_options(entry);
    if (!entry.footer.empty()) text += ".PP\n.nf\n" + roff(entry.footer) + "\n.fi\n";
  }
  text +=
      ".SH EXIT STATUS\n0: good. 1: findings, or the command failed. 2: wrong usage. 3: a node cannot be "
      "reached. "
      "4: aborted. 5: regression. 6: quality gate failed. 130: interrupted.\n";
  return text;
}

}  // namespace spark::app
