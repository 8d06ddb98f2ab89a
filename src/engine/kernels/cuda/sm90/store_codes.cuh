// E4M3 codes become FP16 on their way into shared memory, where the matrix unit reads a prompt's rows.
#pragma once

#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

// Sixteen codes as FP16 to where two lanes read them. Written out: with a function for eight of them the
// compiler orders the kernels' instructions otherwise.
__device__ __forceinline__ void store_sixteen(uint8_t* to, const uint4& codes) {
  reinterpret_cast<uint4*>(to)[0] = make_uint4(e4m3x2_to_half2(codes.x), e4m3x2_to_half2(codes.x >> 16),
                                               e4m3x2_to_half2(codes.y), e4m3x2_to_half2(codes.y >> 16));
  reinterpret_cast<uint4*>(to)[1] = make_uint4(e4m3x2_to_half2(codes.z), e4m3x2_to_half2(codes.z >> 16),
                                               e4m3x2_to_half2(codes.w), e4m3x2_to_half2(codes.w >> 16));
}

}  // namespace spark::engine::cuda
