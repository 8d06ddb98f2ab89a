// Every typed engine setting, as one table: where it stands in a profile's "engine" object, what kind of
// value it is, which server argument or variable carries it, and what it means. Rendering, validation, `spark
// config show`, `spark config diff` and docs/settings.md all read this table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spark::ops {

enum class SettingKind {
  kInteger,
  kNumber,
  kText,
  kDigit,       // a boolean, carried as 1 or 0
  kSwitch,      // a boolean, carried as a bare argument when true
  kSwitchOff,   // a boolean, carried as a bare argument when false
  kSwitchPair,  // a boolean, carried as --NAME or --no-NAME
  kList,        // strings, joined by commas
  kObject,      // an object, carried as compact JSON
  kPathBelow,   // a folder; the carrier's value is that folder plus `suffix`
};

enum class SettingWhen { kAlways, kSparknet, kRocenante, kTilelang };

struct Setting {
  const char* key;  // below "engine"; a leading @ marks a value derived from others
  SettingKind kind;
  const char*
      name;  // "--argument", "VARIABLE"; "" is the positional argument; nullptr: feeds derived values only
  const char* meaning;
  double low = 0;
  double high = 1e15;
  const char* suffix = "";
  SettingWhen when = SettingWhen::kAlways;
  int64_t multiple = 1;    // an integer must be one of this
  const char* words = "";  // of a text: all that is allowed, "auto direct map"; "": anything
};

std::span<const Setting> vllm_arguments();    // in the order of the command line
std::span<const Setting> vllm_variables();    // sorted by name
std::span<const Setting> vllm_ingredients();  // without a carrier of their own
std::span<const Setting> native_arguments();  // spark-engine's command line, in order
std::span<const Setting> native_ingredients();

// "--enable-prefix-caching" -> "--no-enable-prefix-caching": the other word of a kSwitchPair.
std::string negative_name(std::string_view name);

// Variables that may stand in `environment` although no typed setting carries them: per-node values, the
// variables of transports that are not promoted, and those for debugging.
struct KnownName {
  const char* name;
  const char* meaning;
};
std::span<const KnownName> other_variables();
// Server arguments that rules and tools know although no typed setting carries them.
std::span<const KnownName> other_arguments();

// The row whose carrier has this name ("--max-model-len", "NCCL_ALGO"; "--no-io-uring" is that of
// "--io-uring"), or nullptr.
const Setting* setting_of_argument(std::string_view name);
const Setting* setting_of_variable(std::string_view name);

// What a resolved profile path means ("environment.NCCL_ALGO", "serve_args.--port", "host.memguard_gib"); ""
// when nothing is known.
std::string meaning_of(std::string_view resolved_path);

}  // namespace spark::ops
