#include "engine/collective/ucx_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "engine/collective/ucx_choice.h"

namespace spark::engine {
namespace {

using Clock = std::chrono::steady_clock;

// How long a broken connection waits for the membership to say which rank was lost and why.
constexpr int kReasonWaitMs = 300;
// Calls of progress between two looks at what has finished.
constexpr int kProgressCalls = 64;
// How long closing waits for messages that are still under way.
constexpr auto kFlushTime = std::chrono::milliseconds(500);

void check(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  throw Error(std::string(what) + ": " + ucs_status_string(status), "UCX",
              "UCX_LOG_LEVEL=info in the environment tells more");
}

}  // namespace

class UcxTransport::Impl {
 public:
  Impl(int32_t rank, int32_t ranks, const UcxOptions& options)
      : rank_(rank), ranks_(ranks), options_(options), endpoints_(static_cast<size_t>(ranks), nullptr) {
    abort_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (abort_fd_ < 0) throw Error(std::string("no event descriptor: ") + std::strerror(errno));
    start_context();
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(::ucp_worker_create(context_, &params, &worker_), "cannot start a worker");
    check(::ucp_worker_get_efd(worker_, &event_fd_), "no event descriptor");
  }

  ~Impl() {
    // With a rank lost, requests may never finish and the process is about to end: leave them to the kernel.
    if (!aborted_.load()) close();
    ::close(abort_fd_);
  }

  int32_t rank() const { return rank_; }
  int32_t ranks() const { return ranks_; }

  std::vector<uint8_t> address() const {
    ucp_address_t* address = nullptr;
    size_t length = 0;
    check(::ucp_worker_get_address(worker_, &address, &length), "no address");
    const auto* bytes = reinterpret_cast<const uint8_t*>(address);
    std::vector<uint8_t> copy(bytes, bytes + length);
    ::ucp_worker_release_address(worker_, address);
    return copy;
  }

  void connect(std::span<const std::vector<uint8_t>> addresses) {
    SPARK_CHECK(addresses.size() == endpoints_.size());
    for (size_t peer = 0; peer < addresses.size(); ++peer) {
      if (static_cast<int32_t>(peer) == rank_) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
      params.address = reinterpret_cast<const ucp_address_t*>(addresses[peer].data());
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      // Its requests end with the error; there is nothing to do here.
      params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
      const ucs_status_t status = ::ucp_ep_create(worker_, &params, &endpoints_[peer]);
      if (status != UCS_OK) {
        throw Error("cannot reach rank " + std::to_string(peer) + ": " + ucs_status_string(status), "UCX",
                    "look at UCX_TLS and UCX_NET_DEVICES; UCX_LOG_LEVEL=info tells more");
      }
    }
  }

  void send(int32_t to, std::span<const uint8_t> bytes) {
    ucp_request_param_t params{};
    add(to, bytes.size(), true,
        ::ucp_tag_send_nbx(endpoints_[static_cast<size_t>(to)], bytes.data(), bytes.size(), tag_of(rank_),
                           &params));
  }

  void receive(int32_t from, std::span<uint8_t> bytes) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;  // so that the request tells the length
    add(from, bytes.size(), false,
        ::ucp_tag_recv_nbx(worker_, bytes.data(), bytes.size(), tag_of(from), ~ucp_tag_t{0}, &params));
  }

  void wait() {
    const auto sleep_at =
        Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(options_.spin_us * 1e3));
    for (;;) {
      if (aborted_.load(std::memory_order_acquire)) throw RankLost(reason());
      if (options_.at_work) options_.at_work();
      // Until nothing more moves, but never without another look at the abort.
      for (int i = 0; i < kProgressCalls && ::ucp_worker_progress(worker_) != 0; ++i) {
      }
      if (retire()) return;
      if (Clock::now() < sleep_at) continue;
      const ucs_status_t armed = ::ucp_worker_arm(worker_);
      if (armed == UCS_ERR_BUSY) continue;
      check(armed, "cannot wait");
      pollfd waits[2] = {{event_fd_, POLLIN, 0}, {abort_fd_, POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) {
        throw Error(std::string("cannot wait: ") + std::strerror(errno), "UCX");
      }
    }
  }

  void abort(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.load()) return;
      why_ = why;
      aborted_.store(true, std::memory_order_release);
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(abort_fd_, &one, sizeof one);
  }

 private:
  struct Pending {
    void* request = nullptr;
    int32_t peer = 0;
    size_t bytes = 0;
    bool is_send = false;
  };

  static ucp_tag_t tag_of(int32_t sender) { return static_cast<ucp_tag_t>(sender) + 1; }

  void start_context() {
    const UcxChoice choice = choose_ucx(options_.shared_memory, options_.network, options_.devices,
                                        {std::getenv("UCX_TLS"), std::getenv("UCX_NET_DEVICES")});
    // Shared memory only counts as able to report errors when it is told to, and is passed over otherwise.
    if (choice.uses_shared_memory) ::setenv("UCX_MM_ERROR_HANDLING", "y", 0);
    ucp_config_t* config = nullptr;
    check(::ucp_config_read(nullptr, nullptr, &config), "cannot read its configuration");
    if (!choice.transports.empty()) ::ucp_config_modify(config, "TLS", choice.transports.c_str());
    if (!choice.devices.empty()) ::ucp_config_modify(config, "NET_DEVICES", choice.devices.c_str());
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.estimated_num_eps = static_cast<size_t>(ranks_);
    const ucs_status_t status = ::ucp_init(&params, config, &context_);
    ::ucp_config_release(config);
    check(status, "cannot start");
  }

  void add(int32_t peer, size_t bytes, bool is_send, ucs_status_ptr_t request) {
    if (request == nullptr) return;
    if (UCS_PTR_IS_ERR(request)) broken(peer, UCS_PTR_STATUS(request));
    pending_.push_back({request, peer, bytes, is_send});
  }

  // True when nothing is under way any more.
  bool retire() {
    size_t kept = 0;
    for (size_t i = 0; i < pending_.size(); ++i) {
      const Pending each = pending_[i];
      ucp_tag_recv_info_t info{};
      const ucs_status_t status = each.is_send ? ::ucp_request_check_status(each.request)
                                               : ::ucp_tag_recv_request_test(each.request, &info);
      if (status == UCS_INPROGRESS) {
        pending_[kept++] = each;
        continue;
      }
      ::ucp_request_free(each.request);
      if (status != UCS_OK) broken(each.peer, status);
      if (!each.is_send) check_length(each.peer, each.bytes, info.length);
    }
    pending_.resize(kept);
    return kept == 0;
  }

  void check_length(int32_t from, size_t expected, size_t got) const {
    if (expected == got) return;
    throw RankLost("rank " + std::to_string(from) + " sent " + std::to_string(got) + " bytes where " +
                       std::to_string(expected) + " were due",
                   "", "the ranks no longer do the same, which is a fault of the engine: start it again");
  }

  [[noreturn]] void broken(int32_t peer, ucs_status_t status) {
    pollfd wait{abort_fd_, POLLIN, 0};
    ::poll(&wait, 1, kReasonWaitMs);
    if (aborted_.load(std::memory_order_acquire)) throw RankLost(reason());
    const std::string why =
        "the connection to rank " + std::to_string(peer) + " broke: " + ucs_status_string(status);
    abort(why);
    throw RankLost(why);
  }

  std::string reason() {
    const std::lock_guard lock(mutex_);
    return why_;
  }

  void close() {
    std::vector<void*> requests;
    for (ucp_ep_h endpoint : endpoints_) {
      if (endpoint == nullptr) continue;
      const ucs_status_ptr_t request = ::ucp_ep_close_nb(endpoint, UCP_EP_CLOSE_MODE_FLUSH);
      if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
    }
    const auto deadline = Clock::now() + kFlushTime;
    bool open = !requests.empty();
    while (open && Clock::now() < deadline) {
      ::ucp_worker_progress(worker_);
      open = false;
      for (void* request : requests) open = open || ::ucp_request_check_status(request) == UCS_INPROGRESS;
      if (open) ::usleep(200);
    }
    if (open) return;  // a peer that does not answer: the process is about to end
    for (void* request : requests) ::ucp_request_free(request);
    ::ucp_worker_destroy(worker_);
    ::ucp_cleanup(context_);
  }

  const int32_t rank_;
  const int32_t ranks_;
  const UcxOptions options_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;  // UCX's
  int abort_fd_ = -1;
  std::vector<ucp_ep_h> endpoints_;
  std::vector<Pending> pending_;
  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::string why_;
};

UcxTransport::UcxTransport(int32_t rank, int32_t ranks, const UcxOptions& options)
    : impl_(std::make_unique<Impl>(rank, ranks, options)) {}
UcxTransport::~UcxTransport() = default;

std::vector<uint8_t> UcxTransport::address() const {
  return impl_->address();
}
void UcxTransport::connect(std::span<const std::vector<uint8_t>> addresses) {
  impl_->connect(addresses);
}
int32_t UcxTransport::rank() const {
  return impl_->rank();
}
int32_t UcxTransport::ranks() const {
  return impl_->ranks();
}
void UcxTransport::send(int32_t to, std::span<const uint8_t> bytes) {
  impl_->send(to, bytes);
}
void UcxTransport::receive(int32_t from, std::span<uint8_t> bytes) {
  impl_->receive(from, bytes);
}
void UcxTransport::wait() {
  impl_->wait();
}
void UcxTransport::abort(const std::string& why) {
  impl_->abort(why);
}

}  // namespace spark::engine
