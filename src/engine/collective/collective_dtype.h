// In which form the ranks' partial sums leave the products and are added up.
//
//   resolve(CollectiveDtype::kAuto, backend.sums_in_double());     // kFp64 where the backend can
#pragma once

#include <string>

namespace spark::engine {

enum class CollectiveDtype {
  kAuto,
  // Rounded to BF16 by the rank, added in FP32, rounded to BF16 again: fast, and results depend on the number
  // of ranks.
  kBf16,
  // Not rounded by the rank, added in double, rounded to BF16 once: results do not depend on it.
  kFp64,
};

// As --collective-dtype says it.
std::string name_of(CollectiveDtype dtype);

// kAuto becomes what suits the backend. Throws Error when it cannot do what is asked for.
CollectiveDtype resolve(CollectiveDtype asked, bool sums_in_double);

}  // namespace spark::engine
