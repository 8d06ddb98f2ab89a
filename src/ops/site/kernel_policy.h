// The kernel policy (config/kernel-trial.json): which kernels, driver and modules a node may run. One file
// serves every node; the live kernel checks and the launch preflight compare nodes with it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct MemorySaverPolicy {
  std::string package;     // DKMS module name
  std::string version;     // DKMS version
  std::string repository;  // source pin used by the installer
  std::string revision;    // 40 hexadecimal digits
  std::string srcversion;  // source identity of the built nvidia_uvm
};

struct KernelPolicy {
  std::string purpose;
  std::string fallback;      // retained 4 KiB release
  std::string candidate;     // 64 KiB release
  std::string default_boot;  // what the boot loader must start; `fallback` unless stated
  std::string driver;
  std::vector<std::pair<std::string, std::string>> packages;  // exact versions for the candidate
  std::string fan_signing_certificate;
  std::optional<MemorySaverPolicy> memory_saver;
  std::optional<std::string> rm_build_note;

  // The page size that goes with a release; 0 when the policy does not know the release.
  int64_t page_size_of(const std::string& release) const;
};

KernelPolicy read_kernel_policy(const Json& document, Faults& faults);

}  // namespace spark::ops
