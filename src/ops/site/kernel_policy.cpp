#include "ops/site/kernel_policy.h"

#include "ops/site/json_object.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string filled_word(const JsonReader& reader) {
  std::string text = reader.string();
  if (reader.present() && reader.json()->is_string() && text.empty()) reader.fault("is empty");
  return text;
}

MemorySaverPolicy read_memory_saver(const JsonReader& reader) {
  MemorySaverPolicy saver;
  if (!require_object(reader)) return saver;
  reader.reject_unknown({"package", "version", "repository", "revision", "srcversion"});
  saver.package = filled_word(reader.field("package"));
  saver.version = filled_word(reader.field("version"));
  saver.repository = filled_word(reader.field("repository"));
  saver.revision = filled_word(reader.field("revision"));
  if (!saver.revision.empty() && !is_commit(saver.revision)) {
    reader.field("revision").fault("is \"" + saver.revision + "\"; it must be 40 hexadecimal digits");
  }
  saver.srcversion = filled_word(reader.field("srcversion"));
  return saver;
}

}  // namespace

int64_t KernelPolicy::page_size_of(const std::string& release) const {
  if (release == candidate) return 65536;
  return release == fallback ? 4096 : 0;
}

KernelPolicy read_kernel_policy(const Json& document, Faults& faults) {
  KernelPolicy policy;
  const JsonReader root(document, "", faults);
  if (!require_object(root)) return policy;
  root.reject_unknown({"purpose", "fallback", "candidate", "default", "driver", "packages",
                       "fan_signing_certificate", "memory_saver", "rm_build_note"});
  policy.purpose = root.field("purpose").string();
  policy.fallback = filled_word(root.field("fallback"));
  policy.candidate = filled_word(root.field("candidate"));
  if (!policy.candidate.empty() && policy.candidate == policy.fallback) {
    root.field("candidate")
        .fault("equals fallback", "name the 64 KiB release here and the 4 KiB release there");
  }
  policy.default_boot = root.field("default").optional_string().value_or(policy.fallback);
  if (root.field("default").present() && policy.page_size_of(policy.default_boot) == 0) {
    root.field("default").fault("is \"" + policy.default_boot +
                                "\"; it must be the fallback or the candidate");
  }
  policy.driver = filled_word(root.field("driver"));
  if (const JsonReader packages = root.field("packages"); require_object(packages)) {
    for (const auto& [name, value] : packages.members())
      policy.packages.emplace_back(name, filled_word(value));
  }
  policy.fan_signing_certificate = filled_word(root.field("fan_signing_certificate"));
  if (root.field("memory_saver").present())
    policy.memory_saver = read_memory_saver(root.field("memory_saver"));
  policy.rm_build_note = root.field("rm_build_note").optional_string();
  if (policy.rm_build_note && !is_hex(*policy.rm_build_note)) {
    root.field("rm_build_note").fault("must be hexadecimal digits");
  }
  return policy;
}

}  // namespace spark::ops
