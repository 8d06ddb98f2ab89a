// cuBLASLt on the same shapes: FP8 with one scale per tensor (it does less than the block-scaled products)
// and BF16.
#ifdef SPARK_HAS_CUBLASLT

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "common/error.h"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(std::string(what) + ": cuBLASLt status " + std::to_string(static_cast<int>(status)));
  }
}

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

class Library {
 public:
  explicit Library(CudaBackend& backend) : backend_(backend) {
    check(cublasLtCreate(&handle_), "creating a handle");
    workspace_ = reserve<uint8_t>(backend, kWorkspaceBytes);
    scale_ = place(backend, std::vector<float>{1.0F});
  }
  ~Library() { cublasLtDestroy(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Microseconds of y[m][n] = x[m][k] w[n][k] with the best of a few algorithms; weights rotate. 0: not
  // supported.
  double time(int64_t n, int64_t k, int m, bool fp8) {
    const int rows = fp8 ? (m + 15) / 16 * 16 : m;
    const cudaDataType_t in = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const int64_t bytes = n * k * (fp8 ? 1 : 2);
    const int copies = copies_for(backend_, bytes);
    std::vector<void*> weights;
    for (int i = 0; i < copies; ++i) {
      weights.push_back(fp8 ? fp8_values(n * k, static_cast<uint64_t>(i))
                            : bf16_values(n * k, static_cast<uint64_t>(i)));
    }
    void* x = fp8 ? fp8_values(rows * k, 99) : bf16_values(rows * k, 99);
    uint16_t* y = reserve<uint16_t>(backend_, rows * n);

    cublasLtMatmulDesc_t operation = nullptr;
    check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (fp8) {
      const void* scale = scale_;
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof scale);
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale, sizeof scale);
    }
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    check(cublasLtMatrixLayoutCreate(&a, in, static_cast<uint64_t>(k), static_cast<uint64_t>(n), k),
          "a layout");
    check(cublasLtMatrixLayoutCreate(&b, in, static_cast<uint64_t>(k), static_cast<uint64_t>(rows), k),
          "a layout");
    check(
        cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, static_cast<uint64_t>(n), static_cast<uint64_t>(rows), n),
        "a layout");
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspaceBytes, sizeof kWorkspaceBytes);
    std::array<cublasLtMatmulHeuristicResult_t, 6> found = {};
    int count = 0;
    cublasLtMatmulAlgoGetHeuristic(handle_, operation, a, b, d, d, preference, static_cast<int>(found.size()),
                                   found.data(), &count);
    double best = 0;
    for (int i = 0; i < count; ++i) {
      size_t turn = 0;
      bool ok = true;
      const float one = 1, zero = 0;
      const auto body = [&] {
        ok &= cublasLtMatmul(handle_, operation, &one, weights[turn++ % weights.size()], a, x, b, &zero, y, d,
                             y, d, &found[static_cast<size_t>(i)].algo, workspace_, kWorkspaceBytes,
                             static_cast<cudaStream_t>(backend_.native_stream())) == CUBLAS_STATUS_SUCCESS;
      };
      const double us = backend_.time_graph(body, bytes > (int64_t{64} << 20) ? 12 : 48, 5);
      if (ok && (best == 0 || us < best)) best = us;
    }
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(operation);
    return best;
  }

 private:
  void* fp8_values(int64_t count, uint64_t seed) {
    return const_cast<uint8_t*>(backend_.synthetic_bytes(count, seed));
  }
  void* bf16_values(int64_t count, uint64_t seed) { return fp8_values(count * 2, seed); }

  CudaBackend& backend_;
  cublasLtHandle_t handle_ = nullptr;
  uint8_t* workspace_ = nullptr;
  float* scale_ = nullptr;
};

}  // namespace

void measure_cublas(CudaBackend& backend, std::span<const int> rows, std::vector<Measurement>& out) {
  Library library(backend);
  struct Shape {
    const char* name;
    int64_t n, k;
    bool fp8;
  };
  for (const Shape& s :
       {Shape{"q-a + kv 1792x5120", 1792, 5120, true}, Shape{"q-b TP4 8192x1280", 8192, 1280, true},
        Shape{"wo-b TP4 5120x2048", 5120, 2048, true}, Shape{"wo-b 5120x8192", 5120, 8192, true},
        Shape{"q-b 32768x1280", 32768, 1280, true}, Shape{"main 5120x15360", 5120, 15360, true},
        Shape{"engram 25600x6144", 25600, 6144, true}, Shape{"router 384x5120", 384, 5120, false},
        Shape{"compressor 512x5120", 512, 5120, false}, Shape{"head TP4 32320x5120", 32320, 5120, false}}) {
    for (const int m : rows) {
      Measurement r{.name = std::string("cuBLASLt ") + (s.fp8 ? "FP8 " : "BF16 ") + s.name, .rows = m};
      r.bytes = s.n * s.k * (s.fp8 ? 1 : 2);
      r.us = library.time(s.n, s.k, m, s.fp8);
      r.plain_us = r.us;
      out.push_back(r);
    }
  }
}

}  // namespace spark::bench_gpu

#endif
