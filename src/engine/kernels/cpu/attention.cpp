#include <algorithm>

#include "common/error.h"
#include "engine/kernels/cpu/attend.h"
#include "engine/kernels/cpu/operations.h"

namespace spark::engine::cpu {
namespace {

int64_t list_slots(const SparseAttentionArgs& args, int64_t t) {
  int64_t slots = args.window;
  if (args.main_cache.base != nullptr) slots += args.max_selected;
  if (args.extra != nullptr) slots += args.step.last_row[t] - args.step.first_row[t] + 1;
  return slots;
}

// Window positions max(start, end - window + 1) .. end, in the order asked for; the rest stays empty.
void list_window(const SparseAttentionArgs& args, int64_t t, const uint8_t** out) {
  const int32_t end = args.window_end != nullptr ? args.window_end[t] : args.step.position[t];
  const int32_t oldest = end - args.window + 1;
  const int32_t start = std::max({args.step.window_start[t], oldest, 0});
  for (int32_t p = start; p <= end; ++p) {
    const int32_t slot = args.order == WindowOrder::kRingSlot ? p % args.window : p - oldest;
    out[slot] = record_of(args.window_cache, args.step.sequence[t], p);
  }
}

void make_list(const SparseAttentionArgs& args, int64_t t, const uint8_t** out, SlotList& list) {
  list.record = out;
  list.slots = list_slots(args, t);
  std::fill_n(out, list.slots, nullptr);
  list_window(args, t, out);
  list.first_main = list.last_main = args.window;
  if (args.main_cache.base != nullptr) {
    list.last_main += args.max_selected;
    const int32_t* selected = args.selected + t * args.max_selected;
    for (int32_t i = 0; i < args.max_selected; ++i) {
      if (selected[i] >= 0)
        out[list.first_main + i] = record_of(args.main_cache, args.step.sequence[t], selected[i]);
    }
  }
  if (args.extra != nullptr) {
    const uint8_t** to = out + list.last_main;
    for (int64_t row = args.step.first_row[t]; row <= args.step.last_row[t]; ++row)
      *to++ = args.extra + row * window_record_bytes(args.width);
  }
}

}  // namespace

void sparse_attention(Context& ctx, const SparseAttentionArgs& args) {
  const int64_t rows = args.step.rows;
  if (rows <= 0) return;
  SPARK_CHECK(args.width % kBlock == 0);
  int64_t longest = 0;
  for (int64_t t = 0; t < rows; ++t) longest = std::max(longest, list_slots(args, t));
  // Few rows: split the heads too. A head's result does not depend on its group.
  const int64_t wanted = ctx.pool.threads() == 1 ? 1 : 2 * ctx.pool.threads();
  int64_t groups = 1;
  while (rows * groups < wanted && args.heads / (groups * 2) >= kHeadLanes) groups *= 2;
  const int64_t heads = (args.heads + groups - 1) / groups;
  const double cost = static_cast<double>(rows * longest * args.width) * (2.0 * args.heads + 8) / 30;
  ctx.rows.run();  // rows read what other rows of their sequence have just written into the caches
  auto* records = ctx.lists.get<const uint8_t*>(static_cast<size_t>(ctx.pool.threads() * longest));
  Buffer* const scratch = ctx.scratch.data();
  const auto attend_heads = [=](int64_t t, int64_t group, int worker) {
    const int64_t head = group * heads;
    if (args.step.sequence[t] < 0 || head >= args.heads) return;
    SlotList list;
    make_list(args, t, records + worker * longest, list);
    const int64_t at = (t * args.heads + head) * args.width;
    const AttendTask attention{.list = list,
                               .heads = static_cast<int>(std::min(heads, args.heads - head)),
                               .width = args.width,
                               .pairs = args.pairs,
                               .scale = args.scale,
                               .q = args.q + at,
                               .sink = args.sink + head,
                               .cos_sin = args.cos_sin + t * args.pairs * 2,
                               .o = args.o + at};
    attend(attention, scratch[worker]);
  };
  if (groups == 1) {
    ctx.rows.add(rows, cost, [=](int64_t t, int worker) { attend_heads(t, 0, worker); });
  } else {
    ctx.fork(rows * groups, cost,
             [&](int64_t task, int worker) { attend_heads(task / groups, task % groups, worker); });
  }
}

}  // namespace spark::engine::cpu
