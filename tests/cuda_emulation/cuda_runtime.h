// Stands in for the CUDA runtime when the kernels are compiled as plain C++ and run on the CPU: the few types
// and calls that the backend uses. Memory is host memory, streams run everything at once, but for kernels
// that are recorded (recording.h).
//
// The folder of this file comes first in the include path of the emulated build; nothing else may include it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "order.h"
#include "recording.h"

// Both sides of the language that the kernels use.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
// Blocks run one after the other, so a block's static shared memory may be shared by all.
#define __shared__ static

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) {
  return {x, y};
}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotSupported = 801 };
inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : "not emulated";
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

using cudaStream_t = int*;
using cudaEvent_t = uint64_t*;  // what had been issued when it was recorded
using cudaGraph_t = spark::emulation::Graph*;
using cudaGraphExec_t = spark::emulation::Graph*;
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  return *s = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t e, unsigned) {
  return spark::emulation::order().waits_for(*e), cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return *e = new uint64_t{0}, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
  return *e = spark::emulation::order().issued, cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  return *ms = 0, cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  spark::emulation::Recording& r = spark::emulation::recording();
  if (r.graph != nullptr) return cudaErrorNotSupported;  // one at a time
  r.graph = new spark::emulation::Graph;
  return r.on = true, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  spark::emulation::Recording& r = spark::emulation::recording();
  *graph = std::exchange(r.graph, nullptr);
  return r.on = false, cudaSuccess;
}
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaStreamSetCaptureDependencies = 1 };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  *s = spark::emulation::recording().on ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, void*, const void*, size_t, unsigned) {
  return ++spark::emulation::recording().dropped, cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned) {
  return *executable = new spark::emulation::Graph(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const std::function<void()>& kernel : graph->kernels) kernel();
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

// Device memory is only as aligned as cudaMalloc promises.
inline cudaError_t cudaMalloc(void** p, size_t n) {
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  return std::free(p), cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** p, size_t n) {
  return cudaMalloc(p, n);
}
inline cudaError_t cudaFreeHost(void* p) {
  return cudaFree(p);
}
inline cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) {
  return std::memset(p, v, n), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) {
  ++spark::emulation::order().issued;
  return std::memcpy(to, from, n), cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return *free_bytes = *total = 0, cudaSuccess;
}

// Device 0 is an H200 by the numbers that plans depend on, device 1 a GB10.
struct cudaDeviceProp {
  char name[256] = "emulated SM90";
  int major = 9, minor = 0, multiProcessorCount = 132;
  size_t totalGlobalMem = 0, sharedMemPerBlockOptin = 227 * 1024;
  int l2CacheSize = 0;
  int integrated = 0;
};
inline cudaError_t cudaGetDeviceCount(int* n) {
  return *n = 2, cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {};
  if (device == 1) {
    std::strcpy(p->name, "emulated SM121");
    p->major = 12;
    p->minor = 1;
    p->multiProcessorCount = 48;
    p->sharedMemPerBlockOptin = 99 * 1024;
  }
  return cudaSuccess;
}

#include "emulator.h"
