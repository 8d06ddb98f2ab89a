// Live rules about the GPU (specification 3.2.2, hazards 4 and 41).
#include <algorithm>

#include "common/units.h"
#include "ops/doctor/live_context.h"

namespace spark::ops::live {
namespace {

constexpr double kServingClockMhz = 1000;  // a latched GB10 stays at 500 to 720 MHz; normal is about 2,400
constexpr double kLatchPowerLow_w = 10, kLatchPowerHigh_w = 14;
constexpr double kHangPowerLow_w = 17, kHangPowerHigh_w = 22;
constexpr double kHangUtilisation = 95;
constexpr double kHotGpu_c = 87;
// Bits of clocks_event_reasons.active that mean the hardware slows itself down.
constexpr uint64_t kHardwareSlowdown = 0x8, kThermalSoftware = 0x20, kThermalHardware = 0x40,
                   kPowerBrake = 0x80;

std::string watts(const std::optional<double>& power) {
  return power ? format_fixed(*power, 1) + " W" : std::string("unknown power");
}

}  // namespace

void gpu_present(LiveContext& context, const LiveNode& node) {
  const auto& gpu = node.facts.gpu;
  if (!gpu) {
    context.error(node.name(), "the GPU does not answer: nvidia-smi " + node.facts.why("gpu"),
                  "an NVIDIA GB10", "sudo dmesg | grep -i nvrm; reboot if the driver has lost it");
  } else if (gpu->name.find("GB10") == std::string::npos) {
    context.warn(node.name(), "the GPU is " + gpu->name, "NVIDIA GB10",
                 "profiles here were qualified on GB10 only");
  }
}

void gpu_clock(LiveContext& context, const LiveNode& node) {
  if (!context.serving(node) || !node.facts.gpu) return;
  const GpuFacts& gpu = *node.facts.gpu;
  if (!gpu.clock_mhz) return context.unknown(node, "the GPU's clock", "gpu");
  if (*gpu.clock_mhz >= kServingClockMhz) return;
  const bool latched = gpu.power_w && *gpu.power_w >= kLatchPowerLow_w && *gpu.power_w <= kLatchPowerHigh_w;
  context.error(
      node.name(),
      "the GPU runs at " + format_fixed(*gpu.clock_mhz, 0) + " MHz and " + watts(gpu.power_w) +
          " while serving" + (latched ? ": its clock is latched" : ""),
      "at least 1,000 MHz, normally about 2,400",
      "stop the service, power off, take the AC cable out for 1 to 5 minutes; a warm reboot does not help");
}

void gpu_hang(LiveContext& context, const LiveNode& node) {
  if (!context.serving(node) || !node.facts.gpu) return;
  const GpuFacts& gpu = *node.facts.gpu;
  if (!gpu.utilisation || !gpu.power_w || !gpu.memory_utilisation) return;
  const bool hung = *gpu.utilisation >= kHangUtilisation && *gpu.memory_utilisation == 0 &&
                    *gpu.power_w >= kHangPowerLow_w && *gpu.power_w <= kHangPowerHigh_w;
  if (!hung) return;
  context.warn(node.name(),
               "the GPU is " + format_fixed(*gpu.utilisation, 0) + " % busy at " + watts(gpu.power_w) +
                   " without memory traffic: a kernel spins",
               "memory traffic while busy",
               "look again in a minute; then capture stacks and NCCL's RAS (port 28028) before a restart");
}

void gpu_processes(LiveContext& context, const LiveNode& node) {
  if (!node.facts.gpu || context.serving(node) || node.facts.gpu_processes.empty()) return;
  std::string list;
  for (const GpuProcess& process : node.facts.gpu_processes)
    list += (list.empty() ? "" : ", ") + process.name + " (" + std::to_string(process.pid) + ")";
  context.error(node.name(), "nothing serves, but the GPU is used by " + list,
                "no process: it holds memory that a start needs", "stop these processes, or ask their owner");
}

void gpu_slowdown(LiveContext& context, const LiveNode& node) {
  if (!node.facts.gpu || !node.facts.gpu->slowdown_reasons) return;
  const uint64_t reasons = *node.facts.gpu->slowdown_reasons;
  std::string list;
  const std::pair<uint64_t, const char*> kNames[] = {{kHardwareSlowdown, "hardware slowdown"},
                                                     {kThermalSoftware, "software thermal slowdown"},
                                                     {kThermalHardware, "hardware thermal slowdown"},
                                                     {kPowerBrake, "power brake"}};
  for (const auto& [bit, name] : kNames) {
    if ((reasons & bit) != 0) list += (list.empty() ? "" : ", ") + std::string(name);
  }
  if (list.empty()) return;
  context.warn(node.name(), "the GPU is slowed down: " + list, "no slowdown",
               "check cooling, fans and the power supply");
}

void gpu_temperature(LiveContext& context, const LiveNode& node) {
  if (!node.facts.gpu || !node.facts.gpu->temperature_c || *node.facts.gpu->temperature_c < kHotGpu_c) return;
  context.warn(node.name(),
               "the GPU has " + format_fixed(*node.facts.gpu->temperature_c, 0) + " degrees Celsius",
               "below " + format_fixed(kHotGpu_c, 0),
               "check airflow; machines stacked on one another heat each other");
}

}  // namespace spark::ops::live
