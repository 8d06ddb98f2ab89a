#include "engine/serve/boot_gate.h"

#include "api/error_object.h"
#include "api/json_text.h"

namespace spark::engine {

void BootGate::set_phase(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

HttpResponse BootGate::not_yet() const {
  std::string phase;
  {
    const std::lock_guard lock(mutex_);
    phase = phase_;
  }
  HttpResponse response = {.status = 503,
                           .body = api::json_text(api::http_error(503, "not ready yet: " + phase).json())};
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

std::optional<HttpResponse> BootGate::screen(const HttpRequest& head) {
  if (HttpHandler* handler = behind_.load()) return handler->screen(head);
  return not_yet();
}

void BootGate::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (HttpHandler* handler = behind_.load()) return handler->handle(std::move(request), std::move(exchange));
  exchange->respond(not_yet());
}

HttpResponse BootGate::fault(int status, const std::string& message) {
  if (HttpHandler* handler = behind_.load()) return handler->fault(status, message);
  return {.status = status, .body = api::json_text(api::http_error(status, message).json())};
}

void BootGate::give_up() {
  if (HttpHandler* handler = behind_.load()) handler->give_up();
}

}  // namespace spark::engine
