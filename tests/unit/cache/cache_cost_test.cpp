// `spark plan` predicts what the native engine allocates for its caches without including the engine; here
// both are compared.
#include <gtest/gtest.h>

#include "engine/cache/cache_pool.h"
#include "engine/kernels/reference/reference_backend.h"
#include "model/cost.h"
#include "unit/model/published_config.h"

namespace spark::engine {
namespace {

static_assert(model::kNativeBlockTokens == kCacheBlockTokens);
static_assert(model::kNativeMaxRollback == kMaxRollback);

TEST(CacheCost, PlansExactlyWhatThePoolAllocates) {
  const model::ModelConfig config = model::published_config();
  for (const auto& [sequences, context, rows] :
       {std::tuple{1, 300, 16}, {2, 2048, 512}, {3, 8192, 4096}, {1, 256, 8192}, {5, 5000, 300}}) {
    for (const bool caching : {false, true}) {
      for (const int64_t budget : {int64_t{0}, int64_t{300} << 20}) {
        const auto backend = make_reference_backend();
        const CacheLimits limits = {.max_sequences = sequences,
                                    .max_context = context,
                                    .max_step_rows = rows,
                                    .budget_bytes = budget,
                                    .prefix_caching = caching};
        const CachePool pool(*backend, cache_shape(config, limits));
        const model::NativeCacheBytes planned =
            model::native_cache_bytes(config, {.sequences = sequences,
                                               .context = context,
                                               .step_rows = rows,
                                               .budget_bytes = budget,
                                               .prefix_caching = caching});
        EXPECT_EQ(static_cast<uint64_t>(planned.total()), pool.usage().bytes)
            << sequences << " " << context << " " << rows << " " << caching << " " << budget;
        if (budget > 0) {
          EXPECT_LE(planned.total(), budget);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spark::engine
