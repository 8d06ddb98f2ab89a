// Messages over UCX: shared memory between ranks of one machine, TCP or RDMA between machines, whatever both
// ends can do best.
//
//   UcxTransport transport(rank, ranks, {});
//   ... every rank learns every other's transport.address() (membership.h) ...
//   transport.connect(addresses);
//
// A wait looks for messages for a moment, then sleeps on UCX's event descriptor: ranks that share few cores
// leave them to each other, and an idle rank costs nothing. UCX's own variables (UCX_TLS, UCX_NET_DEVICES,
// ...) apply, before what the options say. UCX notices a broken connection in its own time, so it is the
// membership that decides when a rank is lost and calls abort().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/collective/transport.h"

namespace spark::engine {

struct UcxOptions {
  double spin_us = 20;        // before a wait sleeps
  bool shared_memory = true;  // between ranks of one machine
  bool network = true;        // between machines; without it nobody outside can reach this rank's UCX
  std::string devices = {};   // the only ones to use for that, as UCX_NET_DEVICES has them; empty: any
  // Called by a wait each time it looks: the thread that works is running.
  std::function<void()> at_work = {};
};

class UcxTransport final : public Transport {
 public:
  // Throws Error when UCX cannot start.
  UcxTransport(int32_t rank, int32_t ranks, const UcxOptions& options);
  ~UcxTransport() override;

  // Opaque; what another rank needs to connect.
  std::vector<uint8_t> address() const;
  // [ranks]; this rank's own is not looked at. The addresses must be those of running ranks of the same
  // release. Throws Error when one cannot be reached.
  void connect(std::span<const std::vector<uint8_t>> addresses);

  int32_t rank() const override;
  int32_t ranks() const override;
  void send(int32_t to, std::span<const uint8_t> bytes) override;
  void receive(int32_t from, std::span<uint8_t> bytes) override;
  void wait() override;
  void abort(const std::string& why) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spark::engine
