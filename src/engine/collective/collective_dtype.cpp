#include "engine/collective/collective_dtype.h"

#include "common/error.h"

namespace spark::engine {

std::string name_of(CollectiveDtype dtype) {
  switch (dtype) {
    case CollectiveDtype::kBf16:
      return "bf16";
    case CollectiveDtype::kFp64:
      return "fp64";
    case CollectiveDtype::kAuto:
      break;
  }
  return "auto";
}

CollectiveDtype resolve(CollectiveDtype asked, bool sums_in_double) {
  if (asked == CollectiveDtype::kAuto) {
    return sums_in_double ? CollectiveDtype::kFp64 : CollectiveDtype::kBf16;
  }
  if (asked == CollectiveDtype::kFp64 && !sums_in_double) {
    throw Error("fp64 asks for partial sums in double, which this backend's kernels do not leave",
                "--collective-dtype", "choose bf16 or auto, or --backend cpu");
  }
  return asked;
}

}  // namespace spark::engine
