// Answers while the model is loading, so that the port is taken early and whoever asks learns why it must
// wait.
//
//   BootGate gate;
//   std::thread thread([&] { server.run(gate); });
//   gate.set_phase("loading weights");     // GET /health: 503, "loading weights"
//   gate.open(service);                    // from now on everything goes there
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "engine/serve/http.h"

namespace spark::engine {

class BootGate : public HttpHandler {
 public:
  void set_phase(const std::string& phase);
  // `handler` outlives the server's run(). From any thread, once.
  void open(HttpHandler& handler) { behind_.store(&handler); }
  bool is_open() const { return behind_.load() != nullptr; }

  std::optional<HttpResponse> screen(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse fault(int status, const std::string& message) override;
  void give_up() override;

 private:
  HttpResponse not_yet() const;

  std::atomic<HttpHandler*> behind_{nullptr};
  mutable std::mutex mutex_;
  std::string phase_ = "starting";
};

}  // namespace spark::engine
