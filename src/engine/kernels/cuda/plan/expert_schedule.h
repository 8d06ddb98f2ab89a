// Which part of the routed experts' work each block of the streaming kernel does.
//
// Units of gate and up (32 columns of an item) are dealt to the blocks in turn, so that early items are complete
// early. Units of down (32 output channels of an item, one a warp) stand item by item in one list, of which every
// block has a run; the runs are cut so that all blocks read the same bytes, and blocks with one unit of gate and
// up less have a longer one. A warp's work of a run is done in rounds of at most `kWarps` units; the units of a
// round belong to at most two items.
//
//   const ExpertSchedule s = {.items = 35, .ups = 18, .downs = 160, .up_cost = 160, .down_cost = 9, .blocks = 132};
//   s.up_count(block);                                  // units block, block + blocks, ...
//   for (int at = s.first_down(block); at < s.first_down(block + 1); at += s.round(at, s.first_down(block + 1), 20))
#pragma once

#include <cstdint>

#include "engine/numeric/host_device.h"

namespace spark::engine::cuda {

struct ExpertSchedule {
  uint32_t items = 0;
  uint32_t ups = 0;        // units of gate and up of an item
  uint32_t downs = 0;      // units of down of an item
  uint32_t up_cost = 0;    // of a unit, in bytes or anything else that adds up
  uint32_t down_cost = 0;
  uint32_t blocks = 0;

  SPARK_HOST_DEVICE constexpr uint32_t up_count(uint32_t block) const {
    const uint32_t units = items * ups;
    return block < units ? (units - 1 - block) / blocks + 1 : 0;
  }

  // The first unit of down of a block; of block `blocks`: their number.
  SPARK_HOST_DEVICE constexpr uint32_t first_down(uint32_t block) const {
    const uint32_t up_units = items * ups, down_units = items * downs;
    if (down_units * down_cost < up_cost * blocks) return block * down_units / blocks;
    const uint32_t rest = up_units % blocks;
    const uint32_t before = block * (up_units / blocks) + (block < rest ? block : rest);
    return (block * (up_units * up_cost + down_units * down_cost) / blocks - before * up_cost) / down_cost;
  }

  // Units of the round that starts with unit `at` of a run that ends before `end`.
  SPARK_HOST_DEVICE constexpr uint32_t round(uint32_t at, uint32_t end, uint32_t warps) const {
    const uint32_t of_two_items = (at / downs + 2) * downs - at;
    const uint32_t left = end - at;
    const uint32_t most = left < warps ? left : warps;
    return most < of_two_items ? most : of_two_items;
  }
};

}  // namespace spark::engine::cuda
