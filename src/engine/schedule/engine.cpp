#include "engine/schedule/engine.h"

#include "engine/schedule/worker.h"

namespace spark::engine {

Engine::Engine(StepModel& model, const text::Tokenizer& tokenizer, const EngineOptions& options)
    : worker_(std::make_unique<Worker>(model, tokenizer, options)) {}
Engine::~Engine() = default;

int32_t Engine::max_context() const {
  return worker_->options().max_context;
}
int32_t Engine::max_sequences() const {
  return worker_->options().max_sequences;
}
uint64_t Engine::submit(GenerationRequest request, OutputSink sink) {
  return worker_->submit(std::move(request), std::move(sink));
}
void Engine::abort(uint64_t request) {
  worker_->abort(request);
}
void Engine::abort_all() {
  worker_->abort_all();
}
void Engine::fail(const std::string& why) {
  worker_->fail(why);
}
EngineLoad Engine::load() const {
  return worker_->load();
}

}  // namespace spark::engine
