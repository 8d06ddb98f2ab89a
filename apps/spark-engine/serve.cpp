#include "serve.h"

#include <cstdlib>
#include <iostream>
#include <thread>

#include "../signal_watch.h"
#include "boot_log.h"
#include "common/error.h"
#include "common/log.h"
#include "common/units.h"
#include "engine/serve/service.h"
#include "exit_codes.h"
#include "prepare.h"
#include "rank_process.h"

namespace spark::app {
namespace {

// The server's thread. Ends the server when it goes, if nothing else has.
class ServerThread {
 public:
  ServerThread(engine::HttpServer& server, engine::HttpHandler& handler)
      : server_(server), thread_([&server, &handler] { server.run(handler); }) {}
  ~ServerThread() {
    if (!thread_.joinable()) return;
    server_.drain(0);
    thread_.join();
  }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  void join() { thread_.join(); }

 private:
  engine::HttpServer& server_;
  std::thread thread_;
};

void on_signal(engine::HttpServer& server, const engine::BootGate& gate, double drain_timeout_s, int count) {
  // While the model loads there is nothing to finish and nothing to put in order.
  if (count > 1 || !gate.is_open()) std::_Exit(kInterrupted);
  log_info("finishing the requests in progress; a second signal ends them at once");
  server.drain(drain_timeout_s);
}

// A rank above 0: no API, the calls come from rank 0.
int follow(const EngineFlags& flags, Prepared& prepared, BootLog& boot) {
  boot.begin("joining the other ranks");
  RankProcess ranks(flags, prepared.load);
  prepared.load.communicator = ranks.communicator();
  prepared.load.observer = &ranks.watched(boot);
  const auto model = ranks.load([&] { return engine::load_model(prepared.load); });
  boot.finish();
  return ranks.follow(*model);
}

}  // namespace

int serve(const EngineFlags& flags) {
  engine::BootGate gate;
  BootLog boot(gate);
  boot.begin("reading configuration and tokenizer");
  Prepared prepared = prepare(flags, nullptr);
  log_info("memory plan", {{"needed", format_bytes(prepared.memory.total())},
                           {"mapped", format_bytes(prepared.memory.mapped)}});
  if (flags.ranks.rank() > 0) return follow(flags, prepared, boot);

  // In this order, so that the engine's thread ends before the server it answers through.
  engine::HttpServer server(flags.http);
  const SignalWatch signals([&](int count) { on_signal(server, gate, flags.drain_timeout_s, count); },
                            SignalWatch::Until::kProcessEnds);
  ServerThread thread(server, gate);
  if (flags.ranks.tensor_parallel_size > 1) boot.begin("waiting for the other ranks");
  RankProcess ranks(flags, prepared.load);
  prepared.load.communicator = ranks.communicator();
  prepared.load.observer = &ranks.watched(boot);
  const auto model = ranks.load([&] { return engine::load_model(prepared.load); });
  if (flags.ranks.tensor_parallel_size > 1) boot.begin("waiting for the other ranks to load");
  engine::StepModel& group = ranks.lead(*model);
  boot.begin("generating the first token");
  {
    engine::Service service(group, *prepared.tokenizer, prepared.service);
    ranks.attach(server, service);
    ranks.load([&] { service.prove(); });
    boot.finish();

    if (flags.api_keys.empty() && !is_local(flags.http)) {
      log_warning("anyone who reaches " + server.address() +
                  " can use this server: give it a key with --api-key-file");
    }
    if (service.max_context() < prepared.load.limits.max_context) {
      log_warning("the caches hold " + format_count(static_cast<uint64_t>(service.max_context())) +
                  " tokens, less than --max-model-len; give them more with --kv-cache-memory-bytes");
    }
    log_info("serving", {{"model", prepared.service.served_names.front()},
                         {"backend", model->backend().name()},
                         {"ranks", flags.ranks.tensor_parallel_size},
                         {"sequences", service.max_sequences()},
                         {"context", service.max_context()}});
    gate.open(service);
    std::cout << "listening on " << server.address() << std::endl;
    thread.join();
    ranks.detach();
  }
  const int code = ranks.finish();
  log_info("stopped");
  return code;
}

}  // namespace spark::app
