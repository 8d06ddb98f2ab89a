// The stream of numpy.random.default_rng(seed).integers(0, bound, dtype=int64), which fixes the Engram
// multipliers.
//
//   NumpyGenerator generator(10007);
//   uint64_t v = generator.below(46539438283891);    // the first draw
//
// SeedSequence (O'Neill's seed_seq alternative) seeds PCG64 (XSL-RR 128/64); bounded draws use Lemire's
// method.
#pragma once

#include <cstdint>

namespace spark::model {

class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint32_t seed);

  // Uniform in [0, bound). `bound` must exceed 2^32: numpy draws smaller ranges from another stream.
  uint64_t below(uint64_t bound);

 private:
  __extension__ using Wide = unsigned __int128;

  uint64_t next();
  void step();

  Wide state_ = 0;
  Wide increment_ = 0;
};

}  // namespace spark::model
