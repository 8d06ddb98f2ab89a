#include "ops/site/ring_policy.h"

#include <array>

namespace spark::ops {
namespace {

constexpr std::array<RequiredVariable, 22> kRingPolicy = {{
    {"VLLM_ENABLE_PCIE_ALLREDUCE", "0"},
    {"VLLM_DISABLE_PYNCCL", "0"},
    {"NCCL_ALGO", "Ring"},
    {"NCCL_CUMEM_ENABLE", "1"},
    {"NCCL_CUMEM_HOST_ENABLE", "0"},
    {"NCCL_RUNTIME_CONNECT", "1"},
    {"NCCL_PAT_ENABLE", "0"},
    {"NCCL_NVLS_ENABLE", "0"},
    {"NCCL_COLLNET_ENABLE", "0"},
    {"NCCL_MNNVL_ENABLE", "0"},
    {"NCCL_GIN_ENABLE", "0"},
    {"NCCL_RMA_DISABLE", "1"},
    {"NCCL_NET", "IB"},
    {"NCCL_NET_PLUGIN", "none"},
    {"NCCL_IB_DISABLE", "0"},
    {"NCCL_IB_MERGE_NICS", "1"},
    {"NCCL_IB_SUBNET_AWARE_ROUTING", "1"},
    {"NCCL_IB_SUBNET_PREFIX_LEN", "24"},
    {"NCCL_IB_ADDR_FAMILY", "AF_INET"},
    {"NCCL_IB_ROCE_VERSION_NUM", "2"},
    {"NCCL_P2P_DISABLE", "1"},
    {"NCCL_SHM_DISABLE", "1"},
}};

constexpr std::array<const char*, 4> kForbiddenVariables = {"NCCL_ALGO_PLUGIN", "NCCL_TUNER_PLUGIN",
                                                            "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE"};
constexpr std::array<const char*, 1> kForbiddenArguments = {"--enable-expert-parallel"};
constexpr std::array<const char*, 4> kSingleGroups = {"--pipeline-parallel-size", "--data-parallel-size",
                                                      "--decode-context-parallel-size",
                                                      "--prefill-context-parallel-size"};

}  // namespace

std::span<const RequiredVariable> ring_policy() {
  return kRingPolicy;
}

std::string ring_roce_allreduce(const TransportTraits& transport) {
  if (transport.sparknet) return {};
  return transport.one_shot ? "1" : "0";
}

std::span<const char* const> ring_forbidden_variables() {
  return kForbiddenVariables;
}
std::span<const char* const> ring_forbidden_arguments() {
  return kForbiddenArguments;
}
std::span<const char* const> ring_single_groups() {
  return kSingleGroups;
}

}  // namespace spark::ops
