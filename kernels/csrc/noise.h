// Counter-based noise for sampling, the same as kernels/noise.py: a value depends on its key
// (seed, choice, position, token id) and nothing else.
#pragma once

#include <cmath>
#include <cstdint>

namespace espalier {

// Bounds of `gumbel`, a little outside of -log(53 log 2) and 53 log 2.
inline constexpr double min_gumbel = -3.61, max_gumbel = 36.74;

class NoiseKey {
 public:
  NoiseKey(std::uint64_t seed, std::uint64_t choice, std::uint64_t position) {
    for (const std::uint64_t word : {seed, choice, position}) key_ = mix((key_ + gamma) ^ word);
  }

  std::uint64_t bits(std::int64_t token_id) const {
    return mix(static_cast<std::uint64_t>(token_id) * gamma + key_);
  }

 private:
  // SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
  static constexpr std::uint64_t gamma = 0x9E3779B97F4A7C15;
  static std::uint64_t mix(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    return word ^ (word >> 31);
  }

  std::uint64_t key_ = 0;
};

// Standard Gumbel noise: the upper 52 bits are a uniform number u in (0, 1), centred in its cell.
inline float gumbel(std::uint64_t bits) {
  const double uniform = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  return static_cast<float>(-std::log(-std::log(uniform)));
}

// A number such that all smaller bits give less noise than `noise`: no logarithm is needed to
// see it. As -log(-log(u)) < -log(1 - u), noise above x needs 1 - u < e^-x. The 1e-5 is more
// than rounding the noise to float can add.
inline std::uint64_t least_bits(double noise) {
  const double tail = std::exp(1e-5 - noise);
  const double least = (1. - tail) * 0x1p52 - 2.;
  return least > 0. ? static_cast<std::uint64_t>(least) << 12 : 0;
}

}  // namespace espalier
