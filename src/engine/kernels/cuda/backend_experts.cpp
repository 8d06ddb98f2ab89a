#include <algorithm>

#include "engine/kernels/cuda/backend_impl.h"
#include "engine/kernels/cuda/sm121/launch.h"

namespace spark::engine::cuda {

namespace {

ScratchSizes sizes_of(ExpertForm form, const ExpertsArgs& args, const PreparedExperts& bank) {
  return expert_scratch(form, {.rows = args.step.rows,
                               .top_k = args.top_k,
                               .experts = bank.experts,
                               .hidden = bank.hidden,
                               .width = bank.width,
                               .shared_width = args.width});
}

}  // namespace

ExpertWorkspace Backend::expert_workspace(const ScratchSizes& sizes) {
  return {.item_count = scratch<int32_t>(Scratch::kExpertCount, sizes),
          .items = scratch<ExpertItem>(Scratch::kExpertItems, sizes),
          .item_row = scratch<int32_t>(Scratch::kExpertRow, sizes),
          .item_weight = scratch<float>(Scratch::kExpertWeight, sizes),
          .destination = scratch<int32_t>(Scratch::kExpertDestination, sizes),
          .x_scales = scratch<uint32_t>(Scratch::kExpertXScales, sizes),
          .codes = scratch<uint8_t>(Scratch::kExpertCodes, sizes),
          .scales = scratch<uint8_t>(Scratch::kExpertScales, sizes),
          .words = scratch<uint64_t>(Scratch::kExpertWords, sizes),
          .outputs = scratch<uint16_t>(Scratch::kExpertOutputs, sizes),
          .arrivals = scratch<uint32_t>(Scratch::kExpertArrivals, sizes)};
}

// A prompt's rows.
void Backend::prefill_experts(const ExpertsArgs& args, const PreparedExperts& bank, const uint16_t* shared) {
  const ScratchSizes sizes = sizes_of(ExpertForm::kPrompt, args, bank);
  const PrefillExperts work = {.item_count = scratch<int32_t>(Scratch::kExpertCount, sizes),
                               .items = scratch<ExpertItem>(Scratch::kExpertItems, sizes),
                               .row = scratch<int32_t>(Scratch::kExpertRow, sizes),
                               .weight = scratch<float>(Scratch::kExpertWeight, sizes),
                               .destination = scratch<int32_t>(Scratch::kExpertDestination, sizes),
                               .codes = scratch<uint8_t>(Scratch::kExpertCodes, sizes),
                               .scales = scratch<uint8_t>(Scratch::kExpertScales, sizes),
                               .outputs = scratch<uint16_t>(Scratch::kExpertOutputs, sizes)};
  const auto gate_up = limits_.block_scaled_mma ? sm121::launch_prefill_gate_up : launch_prefill_gate_up;
  const auto down = limits_.block_scaled_mma ? sm121::launch_prefill_down : launch_prefill_down;
  for (int first = 0; first < args.step.rows; first += kMaxPrefillRows) {
    const int count = std::min(kMaxPrefillRows, args.step.rows - first);
    launch_prefill_plan(main(), args, first, count, bank.experts, work);
    gate_up(main(), args, first, bank, work);
    down(main(), bank, work);
    if (first == 0) join(shared_side_);
    ExpertWorkspace outputs;
    outputs.outputs = work.outputs;
    launch_expert_combine(main(), args, first, count, outputs, shared + int64_t{first} * args.hidden);
  }
}

void Backend::experts(const ExpertsArgs& args) {
  launch_late_mix();
  const PreparedExperts& bank = WeightStore::prepared(*args.bank);
  const bool stream = expert_stream_fits(limits_, args, bank);
  const ScratchSizes sizes = sizes_of(stream ? ExpertForm::kStream : ExpertForm::kItems, args, bank);
  uint16_t* gate = scratch<uint16_t>(Scratch::kSharedGate, sizes);
  uint16_t* up = scratch<uint16_t>(Scratch::kSharedUp, sizes);
  uint16_t* shared = scratch<uint16_t>(Scratch::kSharedOut, sizes);
  const QuantisedRows t = {.codes = scratch<uint8_t>(Scratch::kSharedCodes, sizes),
                           .scales = scratch<uint8_t>(Scratch::kSharedScales, sizes)};
  const ExpertWorkspace work = expert_workspace(sizes);

  // The router may run in the launch that makes the work list.
  std::optional<RouteArgs> route;
  if (!stream && waiting_.route && waiting_.route->ids == args.ids &&
      waiting_.route->weights == args.weights && waiting_.route->top_k == args.top_k &&
      args.step.rows <= kRoutedPlanRows) {
    route = std::exchange(waiting_.route, std::nullopt);
  }
  // The shared expert needs nothing but the rows: it starts beside the router when they are known to be as
  // the collapse left them.
  if (args.x_q.codes == collapsed_codes_) {
    fork_at(shared_side_, collapsed_, starts_early(args.step.rows));
  } else {
    fork(shared_side_, starts_early(args.step.rows));
  }
  const auto side = [this] { return beside(shared_side_); };
  run_linear(limits_, side,
             {.rows = args.step.rows,
              .x_q = args.x_q,
              .weight = &args.shared->w1,
              .y = gate,
              .y_stride = args.width},
             {.second = &args.shared->w3, .second_y = up});
  launch_swiglu_quantise(side(), gate, up, args.step.rows, args.width, args.limit, t);
  // Few rows: the last product comes behind the routed experts and adds everything up. Where the experts
  // leave multiprocessors free (expert_stream_frees), it runs on those, and a plain sum stands ready behind
  // both.
  const bool beside_experts = stream && options_.side_stream && expert_stream_frees(args.step.rows);
  const bool joins = stream && !beside_experts && combines_directly(limits_, args);
  if (joins) {
    launch_settle(side());
  } else {
    run_linear(
        limits_, side,
        {.rows = args.step.rows, .x_q = t, .weight = &args.shared->w2, .y = shared, .y_stride = args.hidden},
        {});
  }

  if (args.step.rows > kMaxLinearRows && prefill_experts_fit(limits_, args, bank))
    return prefill_experts(args, bank, shared);
  for (int first = 0; first < args.step.rows; first += kMaxLinearRows) {
    const int count = std::min(kMaxLinearRows, args.step.rows - first);
    if (!stream || expert_stream_needs_list(args, count))
      launch_expert_plan(main(), args, first, count, bank.experts, work, route ? &*route : nullptr);
    const uint16_t* shared_rows = shared + int64_t{first} * args.hidden;
    if (stream) {
      launch_expert_stream(main(), args, first, count, bank, work);
      join(shared_side_);
      if (joins) {
        join(mix_side_);  // a launch that joins starts late: one of them is enough
        run_direct_combine(limits_, [this] { return main(); }, args, t,
                           {.outputs = work.outputs,
                            .words = work.words,
                            .word_pairs = count * args.top_k * args.width / 8,
                            .sequence = args.step.sequence,
                            .top_k = args.top_k,
                            .early = options_.side_stream});  // it is joined, and the rows have settled
        continue;
      }
      if (beside_experts) join(mix_side_);  // as above
      launch_expert_combine(main(), args, first, count, work, shared_rows);
      continue;
    }
    const auto gate_up = limits_.block_scaled_mma ? sm121::launch_expert_gate_up : launch_expert_gate_up;
    const auto down = limits_.block_scaled_mma ? sm121::launch_expert_down : launch_expert_down;
    gate_up(main(), args, first, count, bank, work);
    join(shared_side_);
    down(main(), args, first, count, bank, work, shared_rows);
  }
}

}  // namespace spark::engine::cuda
