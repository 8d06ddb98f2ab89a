// Choosing tokens on the device: masses of all tokens, the cuts of top-k and top-p, draws, and block
// verification of drafts. All sums are of integers (numeric/token_mass.h), so the results do not depend on
// how the work is dealt out and are the host's to the bit.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kPieces = kSelectPieces;
constexpr int kPieceThreads = 256;
#ifdef SPARK_CUDA_EMULATION
constexpr int kRowThreads = 256;  // threads are dear there, and the results do not depend on their number
#else
constexpr int kRowThreads = 1024;
#endif
static_assert(kRowThreads >= 256, "find_cut has a thread for each value of a digit");
constexpr int kRowWarps = kRowThreads / 32;
constexpr uint64_t kBadRow = ~uint64_t{0};

// Where the rows of a call lie: rows of block b and place i, `places` to a block. The proposals of a
// verification follow its targets.
struct RowsOf {
  const float* logits;
  const RowFilter* filter;
  const int32_t* banned;
  int max_banned;
  int places;  // rows that share a filter
  int vocab;
};

__device__ __forceinline__ bool is_banned(const int32_t* banned, int count, int token) {
  for (int i = 0; i < count; ++i) {
    if (banned[i] == token) return true;
  }
  return false;
}

__device__ __forceinline__ uint64_t rank_of_logit(float v, int token) {
  return token_rank(ordered_logit(v, __float_as_uint(v)), static_cast<uint32_t>(token));
}

// ---- sums over a block
// ---------------------------------------------------------------------------------------

__device__ __forceinline__ uint64_t warp_sum64(uint64_t v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

// The sum of weight(token) over all tokens, for every thread. A warp takes a run of tokens of its own.
template <class Weight>
__device__ __forceinline__ uint64_t sum_tokens(int vocab, uint64_t* warp_sums, const Weight& weight) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int run = static_cast<int>(round_up(ceil_div(vocab, kRowWarps), 32));
  uint64_t mine = 0;
  for (int i = warp * run + lane; i < min((warp + 1) * run, vocab); i += 32) mine += weight(i);
  mine = warp_sum64(mine);
  __syncthreads();
  if (lane == 0) warp_sums[warp] = mine;
  __syncthreads();
  uint64_t all = 0;
  for (int w = 0; w < kRowWarps; ++w) all += warp_sums[w];
  return all;
}

// The first token, ascending, at which the running sum of weights reaches `target` (1 .. their sum), for
// every thread.
template <class Weight>
__device__ __forceinline__ int find_token(int vocab, uint64_t target, uint64_t* warp_sums, int* found,
                                          const Weight& weight) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int run = static_cast<int>(round_up(ceil_div(vocab, kRowWarps), 32));
  sum_tokens(vocab, warp_sums, weight);  // leaves the sums of the runs
  uint64_t before = 0;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  if (before < target && target <= before + warp_sums[warp]) {
    uint64_t running = before;
    for (int i0 = warp * run;; i0 += 32) {
      const int i = i0 + lane;
      const uint64_t mine = i < min((warp + 1) * run, vocab) ? weight(i) : 0;
      uint64_t upto = mine;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint64_t other = __shfl_up_sync(~0u, upto, offset);
        if (lane >= offset) upto += other;
      }
      const unsigned reached = __ballot_sync(~0u, running + upto >= target);
      if (reached != 0) {
        if (lane == 0) *found = i0 + __ffs(reached) - 1;
        break;
      }
      running += __shfl_sync(~0u, upto, 31);
    }
  }
  __syncthreads();
  const int token = *found;
  __syncthreads();
  return token;
}

// ---- masses
// --------------------------------------------------------------------------------------------------

// The best token of a piece of a row as its rank; kBadRow when a logit is no number; 0: nothing to choose.
__global__ void __launch_bounds__(kPieceThreads)
    row_peak_kernel(const __grid_constant__ RowsOf rows, uint64_t* best) {
  __shared__ uint64_t scratch[kPieceThreads / 32];
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const int piece = static_cast<int>(ceil_div(rows.vocab, kPieces));
  const int first = piece * static_cast<int>(blockIdx.x);
  const int last = min(first + piece, rows.vocab);
  const int32_t* banned = rows.banned + row * rows.max_banned;
  uint64_t v = 0;
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kPieceThreads) {
    const float logit = rows.logits[row * rows.vocab + i];
    const bool number = logit < __uint_as_float(0x7F800000u);
    const uint64_t r = !number                                 ? kBadRow
                       : is_banned(banned, rows.max_banned, i) ? 0
                                                               : rank_of_logit(logit, i);
    v = v > r ? v : r;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, v, offset);
    v = v > other ? v : other;
  }
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kPieceThreads / 32; ++i) v = v > scratch[i] ? v : scratch[i];
  best[row * kPieces + blockIdx.x] = v;
}

__device__ __forceinline__ uint64_t row_peak(const uint64_t* best) {
  uint64_t v = 0;
  for (int i = 0; i < kPieces; ++i) v = v > best[i] ? v : best[i];
  return v;
}

// 0, or why the row has no distribution: its best is -infinity, or there is none.
__device__ __forceinline__ int row_trouble(uint64_t peak) {
  if (peak == kBadRow) return kTokenNotANumber;
  return static_cast<uint32_t>(peak >> 32) <= 0x007FFFFFu ? kEveryTokenExcluded : 0;
}

__global__ void __launch_bounds__(kPieceThreads)
    row_mass_kernel(const __grid_constant__ RowsOf rows, const uint64_t* best, uint64_t* masses) {
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const uint64_t peak = row_peak(best + row * kPieces);
  const bool exists = row_trouble(peak) == 0;
  const int best_token = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(peak));
  const RowFilter filter = rows.filter[row / rows.places];
  const float largest = exists ? rows.logits[row * rows.vocab + best_token] : 0.0f;
  const int32_t* banned = rows.banned + row * rows.max_banned;
  for (int i = static_cast<int>(blockIdx.x * kPieceThreads + threadIdx.x); i < rows.vocab;
       i += static_cast<int>(gridDim.x) * kPieceThreads) {
    uint64_t mass = 0;
    if (exists && !is_banned(banned, rows.max_banned, i)) {
      if (filter.temperature == 0.0) {
        mass = i == best_token ? static_cast<uint64_t>(kMassUnits) : 0;
      } else {
        mass = token_mass(rows.logits[row * rows.vocab + i], largest, filter.temperature, filter.min_p);
      }
    }
    masses[row * rows.vocab + i] = mass;
  }
}

// ---- cuts
// ----------------------------------------------------------------------------------------------------

struct CutScratch {
  unsigned long long digit[256];
  uint64_t warp_sums[kRowWarps];
  uint64_t remaining;
  uint32_t prefix;
  int found;
};

// The rank of the last token to keep: of the tokens with a mass that rank at least `least`, the likeliest
// whose weights (masses, or one each) reach `needed`, which they do.
__device__ __forceinline__ uint64_t find_cut(const float* logits, const uint64_t* masses, int vocab,
                                             uint64_t least, uint64_t needed, bool by_mass, CutScratch& s) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0;
  uint64_t remaining = needed;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (thread < 256) s.digit[thread] = 0;
    __syncthreads();
    for (int i = thread; i < vocab; i += kRowThreads) {
      const uint64_t mass = masses[i];
      if (mass == 0) continue;
      const uint64_t rank = rank_of_logit(logits[i], i);
      const uint32_t ordered = static_cast<uint32_t>(rank >> 32);
      if (rank < least || (shift < 24 && ordered >> (shift + 8) != prefix)) continue;
      atomicAdd(&s.digit[ordered >> shift & 255u], static_cast<unsigned long long>(by_mass ? mass : 1));
    }
    __syncthreads();
    if (thread == 0) {
      int d = 255;
      while (d > 0 && s.digit[d] < remaining) remaining -= s.digit[d], --d;
      s.remaining = remaining;
      s.prefix = prefix << 8 | static_cast<uint32_t>(d);
    }
    __syncthreads();
    remaining = s.remaining;
    prefix = s.prefix;
  }
  // All with this logit have the same mass; of them the lowest tokens that are needed.
  const auto tied = [&](int i) -> uint64_t {
    const uint64_t rank = rank_of_logit(logits[i], i);
    if (masses[i] == 0 || rank < least || static_cast<uint32_t>(rank >> 32) != prefix) return 0;
    return by_mass ? masses[i] : 1;
  };
  const int token = find_token(vocab, remaining, s.warp_sums, &s.found, tied);
  return token_rank(prefix, static_cast<uint32_t>(token));
}

// Clears the masses of what top-k and top-p leave out, and keeps the sum of the others (0: no distribution).
__global__ void __launch_bounds__(kRowThreads, 1)
    row_cut_kernel(const __grid_constant__ RowsOf rows, uint64_t* all_masses, uint64_t* totals) {
  __shared__ CutScratch s;
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const float* logits = rows.logits + row * rows.vocab;
  uint64_t* masses = all_masses + row * rows.vocab;
  const RowFilter filter = rows.filter[row / rows.places];
  uint64_t cut = 0;
  if (filter.temperature != 0.0) {
    if (filter.top_k > 0) {
      const uint64_t survivors =
          sum_tokens(rows.vocab, s.warp_sums, [&](int i) -> uint64_t { return masses[i] != 0 ? 1 : 0; });
      const uint64_t k = static_cast<uint64_t>(filter.top_k);
      if (k < survivors) cut = find_cut(logits, masses, rows.vocab, 0, k, false, s);
    }
    if (filter.top_p < 1.0) {
      const uint64_t total = sum_tokens(rows.vocab, s.warp_sums, [&](int i) -> uint64_t {
        return masses[i] != 0 && rank_of_logit(logits[i], i) >= cut ? masses[i] : 0;
      });
      if (total > 0) {
        cut = find_cut(logits, masses, rows.vocab, cut, mass_share(filter.top_p, total), true, s);
      }
    }
    __syncthreads();
    if (cut != 0) {
      for (int i = static_cast<int>(threadIdx.x); i < rows.vocab; i += kRowThreads) {
        if (rank_of_logit(logits[i], i) < cut) masses[i] = 0;
      }
      __syncthreads();
    }
  }
  const uint64_t total = sum_tokens(rows.vocab, s.warp_sums, [&](int i) { return masses[i]; });
  if (threadIdx.x == 0) totals[row] = total;
}

// ---- draws
// ---------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kRowThreads, 1)
    draw_kernel(int vocab, const uint64_t* best, const uint64_t* all_masses, const uint64_t* totals,
                const double* uniform, int32_t* token) {
  __shared__ uint64_t warp_sums[kRowWarps];
  __shared__ int found;
  launch_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const int trouble = row_trouble(row_peak(best + row * kPieces));
  int chosen = trouble;
  if (trouble == 0) {
    const uint64_t* masses = all_masses + row * vocab;
    chosen = find_token(vocab, mass_share(uniform[row], totals[row]), warp_sums, &found,
                        [&](int i) { return masses[i]; });
  }
  if (threadIdx.x == 0) token[row] = chosen;
}

struct VerifyParams {
  VerifyArgs args;
  const uint64_t* target_best;
  const uint64_t* target_masses;
  const uint64_t* target_totals;
  const uint64_t* proposal_best;
  const uint64_t* proposal_masses;
  const uint64_t* proposal_totals;
};

__global__ void __launch_bounds__(kRowThreads, 1) verify_kernel(const __grid_constant__ VerifyParams p) {
  __shared__ uint64_t warp_sums[kRowWarps];
  __shared__ int found;
  launch_dependents();
  wait_for_inputs();
  const VerifyArgs& a = p.args;
  const int64_t block = blockIdx.x;
  const int count = a.count[block];
  const int64_t target0 = block * (a.max_drafts + 1), proposal0 = block * a.max_drafts;
  int trouble = 0;
  for (int i = count; i >= 0; --i) {  // the first one counts
    const int of_proposal =
        i < count ? row_trouble(row_peak(p.proposal_best + (proposal0 + i) * kPieces)) : 0;
    const int of_target = row_trouble(row_peak(p.target_best + (target0 + i) * kPieces));
    if (of_proposal != 0) trouble = of_proposal;
    if (of_target != 0) trouble = of_target;
  }
  if (trouble != 0) {
    if (threadIdx.x == 0) a.accepted[block] = 0, a.next[block] = trouble;
    return;
  }
  const auto target = [&](int i) { return p.target_masses + (target0 + i) * a.vocab; };
  const auto proposal = [&](int i) { return p.proposal_masses + (proposal0 + i) * a.vocab; };
  // What is left of the target at place i when `scale` times it has given the proposal its share.
  const auto rest_of = [&](int i, double scale) {
    const uint64_t* of_target = target(i);
    const uint64_t* of_proposal = proposal(i);
    const double target_unit = scale / static_cast<double>(p.target_totals[target0 + i]);
    const double proposal_unit = 1.0 / static_cast<double>(p.proposal_totals[proposal0 + i]);
    return [=](int token) -> uint64_t {
      const uint64_t mass = of_target[token];
      return mass == 0 ? 0 : residual_mass(mass, target_unit, of_proposal[token], proposal_unit);
    };
  };
  double prefix = 1, accepted_prefix = 1;
  int accepted = 0;
  for (int i = 1; i <= count; ++i) {
    const int draft = a.drafts[proposal0 + i - 1];
    const double quotient = draft_quotient(target(i - 1)[draft], p.target_totals[target0 + i - 1],
                                           proposal(i - 1)[draft], p.proposal_totals[proposal0 + i - 1]);
    const double u = a.accept[proposal0 + i - 1];
    if (a.standard) {
      if (!(u <= quotient)) break;
      accepted = i;
      continue;
    }
    const double product = prefix * quotient;
    prefix = product < 1.0 ? product : 1.0;
    double threshold = prefix;
    if (i < count) {
      const uint64_t rest = prefix > 0 ? sum_tokens(a.vocab, warp_sums, rest_of(i, prefix)) : 0;
      threshold = acceptance_threshold(prefix, rest);
    }
    if (u <= threshold) accepted = i, accepted_prefix = prefix;
  }
  const double last = a.last[block];
  int next = 0;
  uint64_t left = 0;
  if (accepted < count) left = sum_tokens(a.vocab, warp_sums, rest_of(accepted, accepted_prefix));
  if (left > 0) {
    next = find_token(a.vocab, mass_share(last, left), warp_sums, &found, rest_of(accepted, accepted_prefix));
  } else {
    const uint64_t* masses = target(accepted);
    next = find_token(a.vocab, mass_share(last, p.target_totals[target0 + accepted]), warp_sums, &found,
                      [&](int i) { return masses[i]; });
  }
  if (threadIdx.x == 0) a.accepted[block] = accepted, a.next[block] = next;
}

// Peaks, masses and cuts of `count` rows; `at` says where they go.
void launch_masses(const Launch& on, const RowsOf& rows, int count, const SelectWorkspace& at) {
  const auto n = static_cast<unsigned>(count);
  launch_kernel(on, row_peak_kernel, dim3(kPieces, n), kPieceThreads, 0, 1, rows, at.best);
  launch_kernel(on, row_mass_kernel, dim3(32, n), kPieceThreads, 0, 1, rows, at.best, at.masses);
  launch_kernel(on, row_cut_kernel, dim3(n), kRowThreads, 0, 1, rows, at.masses, at.totals);
}

}  // namespace

void launch_select(const Launch& on, const SelectArgs& args, const SelectWorkspace& work) {
  const RowsOf rows = {.logits = args.logits,
                       .filter = args.filter,
                       .banned = args.banned,
                       .max_banned = args.banned != nullptr ? args.max_banned : 0,
                       .places = 1,
                       .vocab = args.vocab};
  launch_masses(on, rows, args.rows, work);
  launch_kernel(on, draw_kernel, dim3(static_cast<unsigned>(args.rows)), kRowThreads, 0, 1, args.vocab,
                work.best, work.masses, work.totals, args.uniform, args.token);
}

void launch_verify(const Launch& on, const VerifyArgs& args, const SelectWorkspace& work) {
  const int targets = args.blocks * (args.max_drafts + 1), proposals = args.blocks * args.max_drafts;
  const SelectWorkspace of_proposals = {.best = work.best + int64_t{targets} * kSelectPieces,
                                        .masses = work.masses + int64_t{targets} * args.vocab,
                                        .totals = work.totals + targets};
  launch_masses(on,
                {.logits = args.target_logits,
                 .filter = args.filter,
                 .banned = args.banned,
                 .max_banned = args.banned != nullptr ? args.max_banned : 0,
                 .places = args.max_drafts + 1,
                 .vocab = args.vocab},
                targets, work);
  launch_masses(on,
                {.logits = args.proposal_logits,
                 .filter = args.filter,
                 .banned = nullptr,
                 .max_banned = 0,
                 .places = args.max_drafts,
                 .vocab = args.vocab},
                proposals, of_proposals);
  const VerifyParams p = {.args = args,
                          .target_best = work.best,
                          .target_masses = work.masses,
                          .target_totals = work.totals,
                          .proposal_best = of_proposals.best,
                          .proposal_masses = of_proposals.masses,
                          .proposal_totals = of_proposals.totals};
  launch_kernel(on, verify_kernel, dim3(static_cast<unsigned>(args.blocks)), kRowThreads, 0, 1, p);
}

}  // namespace spark::engine::cuda
