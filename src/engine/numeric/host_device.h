// Functions that run on both sides of a CUDA program.
#pragma once

#if defined(__CUDACC__)
#define SPARK_HOST_DEVICE __host__ __device__
#else
#define SPARK_HOST_DEVICE
#endif
