// Products with placed weights: cut by the plan, launched by format, rows and device.
#pragma once

#include <functional>

#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

// Gives the next launch of a chain.
using Where = std::function<Launch()>;

// Rows of a product that a launch may quantise itself, once in every block.
constexpr int kMaxQuantisingRows = 16;

struct LinearExtras {
  // Another weight for the same rows, whose product goes to second_y; in the same launch where both are FP8
  // of one shape.
  const Weight* second = nullptr;
  uint16_t* second_y = nullptr;
  // The quantiser that makes args.x_q, to run in the same launch: see quantises_inside.
  const QuantiseArgs* quantise = nullptr;
};

void run_linear(const DeviceLimits& device, const Where& where, const LinearArgs& args,
                const LinearExtras& extras);
void run_grouped_linear(const DeviceLimits& device, const Where& where, const GroupedLinearArgs& args);

// The shared expert's last product, in a launch that adds the routed experts to it: where it is direct.
bool combines_directly(const DeviceLimits& device, const ExpertsArgs& args);
void run_direct_combine(const DeviceLimits& device, const Where& where, const ExpertsArgs& args,
                        const QuantisedRows& t, const RoutedSum& routed);

// Whether the product lets its successors go after its own wait (see LaunchChain): those of BF16 weights,
// which nobody follows who has much to fetch.
bool settles(const LinearArgs& args);

// Whether the product can quantise its rows in its own launch.
bool quantises_inside(const DeviceLimits& device, const LinearArgs& args, const QuantiseArgs& quantise);
// Whether it can normalise and quantise them.
bool normalises_inside(const DeviceLimits& device, const LinearArgs& args, const RmsNormArgs& norm);

// What follows a product whose rows are normalised in its launch, in the same launch.
struct NormedLinear {
  RmsNormArgs norm;
  LinearArgs product;
  const RmsNormArgs* second = nullptr;      // of the same number of rows
  const RopeArgs* rope = nullptr;           // of the product's output
  const WindowWriteArgs* window = nullptr;  // of the second norm's output
};
void run_normed_linear(const DeviceLimits& device, const Where& where, const NormedLinear& args);

}  // namespace spark::engine::cuda
