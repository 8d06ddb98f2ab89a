#include <vector>

#include "ops/doctor/rule.h"

namespace spark::ops {
namespace {

using enum Severity;

// Sorted by subject, as documentation shows them. An id never changes its meaning; a retired one is not used
// again.
constexpr Rule kOfflineRules[] = {
    {"config.format", kError, false, "Files have the right form",
     "Profile, site file, node map, lock, manifest and policy are strict JSON with known keys, types and "
     "ranges. Every "
     "fault of every file is reported in one run, with its path and, for an unknown key, the nearest known "
     "one.",
     "A value that is misread or ignored takes effect as something else, or not at all.",
     "Correct the named value; `spark config show` prints what a profile resolves to.", kAlways, nullptr},
    {"config.spelling", kWarning, false, "Names are not misspelt",
     "Variables and arguments that nobody is known to read but that almost equal one that somebody reads.",
     "A misspelt setting is silently without effect.",
     "Rename it, or ignore the warning if the server knows the name.", kEngine, rule::spelling},

    {"fabric.nodes", kError, false, "Three or four nodes",
     "The node map has three or four nodes. Two nodes and switched fabrics are refused.",
     "On two nodes the weights leave no useful context; the transports here assume direct cables.",
     "Use three nodes in a triangle or four in a ring.", kNodes, rule::fabric},
    {"fabric.ranks", kError, false, "Ranks are 0 to n-1",
     "Ranks are integers and exactly 0 to n-1. Otherwise the fabric is not checked further.",
     "The rank is the position in the cable loop.", "Number the nodes in cable order, the head 0.", kAlways,
     nullptr},
    {"fabric.identity", kError, false, "Nodes can be told apart",
     "Names and management addresses are distinct, present and well-formed.",
     "Two entries for one machine start two ranks on it.", "Give every node its own name and address.",
     kAlways, nullptr},
    {"fabric.transport", kError, false, "The transport fits the nodes",
     "The transport is known; four nodes need a neighbour ring; ring4 and mesh4 need exactly four.",
     "A direct transport expects a cable between every pair, which four nodes do not have.",
     "Three nodes: oneshot-direct. Four nodes: oneshot-ring4.", kAlways, nullptr},
    {"fabric.mesh-paths", kError, false, "Mesh paths", "mesh_paths is 2, or 4 with rocenante-mesh4 only.",
     "Only the forwarded mesh has a choice of paths.", "Remove fabric.mesh_paths.", kAlways, nullptr},
    {"fabric.peers", kError, false, "Peers and devices",
     "Every node names exactly the peers that it has cables to, one or two local devices each (the mesh: "
     "two); both ends "
     "of a cable name as many; no device serves two peers; one-shot transports have equal counts for all "
     "peers.",
     "A wrong device sends a rank's data into the wrong cable: the start hangs.",
     "Correct roce_peer_hcas; `spark fabric show` draws the cables as declared.", kAlways, nullptr},
    {"fabric.subnets", kError, false, "Subnets follow cables",
     "On rings every device has an IPv4 /24, and each subnet is at exactly the two ends of one declared "
     "cable; with "
     "one-shot transports at the same stripe position.",
     "NCCL chooses the NIC by subnet; a wrong one has no route to the peer.",
     "Correct roce_subnets; `spark fabric plan` prints an address plan.", kAlways, nullptr},
    {"fabric.stripes", kError, false, "One stripe count",
     "One-shot transports use one stripe count over all ranks.",
     "Ranks with different counts wait for each other forever.",
     "Name the same number of devices for every peer.", kAlways, nullptr},
    {"fabric.gid-index", kError, false, "GID slot of a node", "roce_gid_index is a slot of the GID table.",
     "A slot that does not exist fails every connection.",
     "Use the slot that holds RoCE v2 over IPv4, usually 3.", kAlways, nullptr},
    {"fabric.mesh-ports", kError, false, "Mesh ports",
     "The forwarded mesh needs all four ports of every node, with interface, PCI address, MAC and address in "
     "their form, "
     "each once.",
     "Forwarding rules are built from them.", "Complete mesh_ports, or use oneshot-ring4.", kAlways, nullptr},

    {"cluster.head", kError, false, "One head on rank 0",
     "Exactly one node is the head, on rank 0, and distributed.master_addr is its management_ip.",
     "Workers meet at that address; the API is served there.", "Mark rank 0 as head; leave master_addr out.",
     kNodes, rule::head},
    {"cluster.guard", kError, false, "Guard values",
     "Thresholds, intervals and the wait are positive numbers (no booleans), and the startup threshold is "
     "above the "
     "steady one.",
     "Without a working guard a node that runs out of memory takes its SSH with it.",
     "5 GiB every 0.25 s at startup, 3 GiB every 2 s afterwards.", kAlways, rule::guard},
    {"cluster.guard-floor", kError, false, "Guard thresholds are not lowered",
     "At least 3 GiB for the steady guard and 5 GiB at startup.",
     "Compilation at startup has taken nodes to 1.0 GiB, where every management path was lost.",
     "Give memory back elsewhere: fewer KV bytes, fewer sequences.", kAlways, rule::guard_floor},
    {"cluster.deployment", kError, true, "Deployment fields",
     "repository, path, ready_url and ready_timeout_seconds are present and not empty; branch is absent or "
     "not empty; "
     "launch_enabled is a boolean; the repository's address holds no credentials. An address that the "
     "example left there is a "
     "warning.",
     "sync and start compare every node with them.", "Fill them in; site data belongs in config/site.json.",
     kAlways, rule::deployment},
    {"cluster.ready-url", kError, false, "The readiness address asks the server",
     "ready_url is an HTTP address with the port that the server listens on.",
     "A start would wait an hour for an answer from the wrong port.",
     "Write http://127.0.0.1:PORT/v1/models.", kEngine, rule::ready_url},
    {"cluster.rendezvous-port", kError, true, "The rendezvous port is free",
     "master_port is not the API's port (error) and lies below the ephemeral range (warning from 10000 on).",
     "An outgoing connection that happens to hold the port keeps the head from starting.", "Use 9999.",
     kEngine, rule::rendezvous_port},
    {"cluster.candidate", kWarning, false, "Candidates are not launched by accident",
     "A profile that was made by a tuning recipe has launch_enabled false.",
     "Being deployed gives a candidate no status.", "Set deployment.launch_enabled to false.", kAlways,
     rule::candidate_launch},
    {"cluster.baseline", kError, false, "Profile and lock belong together",
     "promoted_baseline of the profile equals generated_from_baseline of the lock.",
     "Otherwise the image that is named is not the one that the lock describes.",
     "Promote both in one commit.", kAlways, rule::baseline},
    {"cluster.reference", kError, true, "The reference run has this shape",
     "benchmark_reference lies in the repository, exists, and describes a run with this profile's node "
     "count, transport "
     "and kernel family. A report that does not record them, and a missing or different default reference, "
     "are warnings; what a report does not record is not guessed. `spark bench` records them when it is told "
     "the profile: `spark --cluster-config PROFILE bench --base-url URL`.",
     "Comparing runs of different shapes is nonsense; without a reference nobody can tell that another build "
     "is slower.",
     "Name a report of this shape in benchmark_reference of a profile of your own that extends this one.",
     kNodes | kTransport | kOneSize, rule::reference},

    {"transport.sparknet", kError, false, "Variables of sparknet transports",
     "With oneshot-* no B12X_ROCE_* variable and none of VLLM_ENABLE_ROCE_ALLREDUCE, "
     "VLLM_ROCE_ALLREDUCE_MAX_SIZE, "
     "VLLM_ROCE_ALLGATHER_MAX_SIZE; SPARKNET_ROCE_TOPOLOGY, if set, matches the transport.",
     "Two one-shot libraries would claim the same collectives.", "Remove the named variable.",
     kTransport | kVllmOnly, rule::sparknet_environment},
    {"transport.b12x", kError, false, "Variables of other transports",
     "Without sparknet no SPARKNET_ROCE_* variable; B12X_ROCE_TOPOLOGY is direct or absent unless the "
     "transport is a ring "
     "or the mesh.",
     "A stray topology sends data along cables that are not there.", "Remove the named variable.",
     kTransport | kVllmOnly, rule::b12x_environment},
    {"transport.ring", kError, false, "Ring policy",
     "On neighbour rings: the NCCL variables that keep it on the ring, equal channel counts of 1, 2, 4 or 8 "
     "(1 on three "
     "nodes), no expert parallelism, no other parallel group, no plug-ins or fixed graphs, and "
     "--disable-custom-all-reduce exactly with nccl-ring.",
     "NCCL otherwise connects to the opposite rank, to which there is no cable, and the start hangs.",
     "Set what the finding names; config/cluster-tp4.json has all of it.",
     kNodes | kTransport | kEngine | kVllmOnly | kOneSize, rule::ring},
    {"transport.gid", kError, false, "GID slots of the profile",
     "NCCL_IB_GID_INDEX and the one-shot transport's GID index are slots of the GID table, and the same one.",
     "A wrong slot is RoCE v1 or link-local: connections fail with a system error.",
     "Set engine.gid_index to 3.", kTransport | kEngine | kVllmOnly, rule::gid_settings},
    {"transport.devices", kError, false, "NCCL sees every device",
     "With direct transports NCCL_IB_HCA lists every device of the node map.",
     "NCCL would use half of the cables, or none to one peer.", "Add the device to engine.rdma_devices.",
     kNodes | kTransport | kEngine | kVllmOnly | kOneSize, rule::device_list},
    {"transport.interfaces", kError, false, "One management interface",
     "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and TP_SOCKET_IFNAME are set and equal, unless every node names "
     "its own.",
     "A rank that announces another interface cannot be reached.",
     "Set engine.management_interface in config/site.json.", kNodes | kEngine | kVllmOnly, rule::interfaces},
    {"transport.mesh", kError, false, "The forwarded mesh is not for serving",
     "With rocenante-mesh4 launch_enabled is false, and four paths need an image with that capability.",
     "Larger payloads retransmit, and latency is worse than through the ring.", "Use oneshot-ring4.",
     kTransport | kVllmOnly, rule::mesh},

    {"engine.world-size", kError, false, "World size",
     "--tensor-parallel-size and --nnodes equal the node count.",
     "Ranks would wait for peers that never come.",
     "Set engine.nodes, or use the profile for this node count.", kNodes | kEngine, rule::world_size},
    {"engine.drafter", kError, false, "Drafter on all ranks",
     "--speculative-config is a JSON object; unless empty, its draft_tensor_parallel_size equals the node "
     "count.",
     "A drafter on one rank takes memory that the head does not have.", "Leave it to engine.nodes.",
     kNodes | kEngine | kVllmOnly | kOneSize, rule::drafter},
    {"engine.kernels", kError, false, "One kernel family",
     "Attention, linear and expert backends, the drafter's and VLLM_DS41_KERNEL_BACKEND follow "
     "kernel_backend; with "
     "tilelang TILELANG_CACHE_DIR lies below /cache.",
     "Mixed families are untested and not bit-identical.", "Set kernel_backend only; the rest follows.",
     kEngine | kVllmOnly, rule::kernel_backend},
    {"engine.clamp", kError, false, "Activation clamp", "B12X_W4A8_TINY_DECODE is 0.",
     "That path omits the clamp in SwiGLU: text becomes incoherent at normal speed.", "Set it to 0.",
     kVllmOnly, rule::activation_clamp},
    {"engine.arguments", kError, false, "Arguments stand once",
     "No argument twice, no stray word, none of those that are added per rank.",
     "The last one wins silently; a per-rank argument in the profile breaks the other ranks.",
     "Remove the duplicate.", kEngine, rule::repeated_arguments},
    {"engine.memory", kError, true, "Settings known to exhaust memory",
     "On three nodes at most 4,096 batched tokens; no B12X autotuning; an explicit KV size; the memory saver "
     "with 64 KiB "
     "pages. More than one parallel prefill is a warning.",
     "GPU and host share one memory: these have crossed the startup guard or taken a node down.",
     "Set what the finding names.", kNodes | kEngine, rule::unsafe_memory},
    {"engine.graphs", kWarning, false, "Graphs cover every batch",
     "--max-cudagraph-capture-size equals sequences times one plus drafts.",
     "Larger batches run without a graph; larger graphs waste memory.",
     "Leave it out: it follows from max_num_seqs.", kEngine | kVllmOnly, rule::graph_size},
    {"engine.unit", kError, false, "The native engine's unit",
     "Service name, program path, memory limit and backend of a native profile.",
     "The unit file is made from them.", "See config/base/native.json.", kEngine | kNativeOnly,
     rule::native_unit},
    {"engine.api", kError, true, "The API is not open to everybody",
     "An API that listens beyond the loopback interface has a key (warning); the key itself never stands in "
     "the "
     "configuration (error).",
     "Anybody on the network can use an open server; a key in Git is public.",
     "Name a file on the nodes in engine.secret_environment_file, or bind 127.0.0.1.", kEngine,
     rule::api_exposure},

    {"host.kernel", kError, false, "Kernel and policy agree",
     "host.kernel.release is a kernel of the policy, with its page size; the memory saver is described there "
     "if required.",
     "A memory budget holds for the kernel that it was qualified on.", "Name a kernel of the policy.",
     kAlways, rule::kernel_policy},
    {"container.options", kError, false, "Container options",
     "What the engine needs of docker run is there (network, IPC, GPUs, verbs, locked memory, a memory limit "
     "below the "
     "node's, no swap, the display's card when its memory is used) and what the launch adds itself is not.",
     "A missing limit lets the container take the host's memory; a missing device fails the start after "
     "minutes.",
     "config/base/vllm.json has all of it.", kVllmOnly, rule::container_options},
    {"container.mounts", kError, false, "Mounts",
     "No folder twice, the checkpoint read-only at the model's path, /blobs beside a snapshot of links.",
     "The start fails after the container is up, or the checkpoint can be overwritten.",
     "Correct container.mounts.", kEngine | kVllmOnly, rule::container_mounts},
    {"container.caches", kError, false, "Caches survive the container",
     "Every cache folder lies on a mount with mode rw.",
     "Kernels are compiled again at every start, in memory that the guard watches.", "Move it below /cache.",
     kEngine | kVllmOnly, rule::cache_folders},

    {"sources.pins", kError, false, "Sources are pinned",
     "Every source has an upstream; Git sources a commit of 40 digits and a tracking ref; vllm, b12x and "
     "nccl are listed.",
     "An image from floating refs cannot be rebuilt.", "Pin the full commit.", kAlways, rule::pins},
    {"sources.files", kError, false, "Patches and hash locks exist",
     "Every series file, every listed patch and every lockfile is in the repository.",
     "The build would stop, or worse, not.", "Restore the file from Git.", kAlways, rule::source_files},
    {"sources.watch-list", kWarning, false, "The watch-list is described",
     "The watch-list document exists; every reference is of kind git-watch, has url and role, and is in the "
     "document.",
     "Nobody follows up what nobody can find.", "Describe it in docs/watch-list.md.", kAlways,
     rule::watch_list},
    {"sources.pairs", kError, false, "Sources that need each other",
     "tilelang and tile_kernels together; sparknet only with them; optional projects record a version.",
     "One without the other does not build.", "Add the missing one.", kAlways, rule::source_pairs},
    {"sources.kernels", kError, false, "The image has the kernel family",
     "With kernel_backend tilelang the lock lists its sources, the manifest its capability, and the labels "
     "of vllm, "
     "tilelang and tile_kernels are the manifest's trees.",
     "An image without these kernels fails at load, or serves others.",
     "Name the image that was built from this lock.", kVllmOnly, rule::kernel_sources},
    {"sources.ring", kError, false, "The image has the ring",
     "With rocenante-ring4 and -mesh4 the manifest's b12x has that capability and its label is the "
     "manifest's tree.",
     "An image without it falls back or hangs.", "Name an image with the capability.", kTransport | kVllmOnly,
     rule::b12x_ring_sources},
    {"sources.sparknet", kError, false, "The image has sparknet, or not",
     "With oneshot-* lock and manifest have sparknet, vllm has tilelang-sparknet-collectives and the label "
     "is the tree; "
     "an image with sparknet serves no B12X one-shot transport.",
     "The library that the transport needs would be missing.", "Choose image and transport together.",
     kTransport | kVllmOnly, rule::sparknet_sources},
    {"sources.fingerprints", kError, false, "Manifest and patches agree",
     "Every build project has a record with the lock's revision, the fingerprint of its patches, and its "
     "submodules.",
     "A changed patch would be built under the old name.", "Record its new head and tree first.", kAlways,
     rule::fingerprints},
    {"sources.artifacts", kError, false, "Recorded files are unchanged",
     "Every deployment artifact of the manifest exists with the recorded SHA-256.",
     "A file that was promoted was edited afterwards.", "Restore it, or promote the change.", kAlways,
     rule::artifacts},
    {"secrets.tracked", kError, true, "No credentials in Git",
     "No tracked file has the name of a key file, a private key, a known token form, or a long random text "
     "beside a "
     "secret's name. Files above 2 MiB are reported as not searched.",
     "What is in Git is public sooner or later.", "Revoke it where it was issued, then remove it.", kAlways,
     rule::tracked_secrets},
};

}  // namespace

std::span<const Rule> rules() {
  static const std::vector<Rule> kAll = [] {
    std::vector<Rule> all(std::begin(kOfflineRules), std::end(kOfflineRules));
    all.insert(all.end(), live_rules().begin(), live_rules().end());
    return all;
  }();
  return kAll;
}

const Rule* find_rule(std::string_view id) {
  for (const Rule& entry : rules()) {
    if (id == entry.id) return &entry;
  }
  return nullptr;
}

}  // namespace spark::ops
