// One token from a row's adjusted logits: top_k, top_p, min_p, then Gumbel-max. Knows nothing
// of penalties and masks.
//
// Every filter keeps the tokens from some logit or some score on, so none needs more than a
// threshold; a score is a logit minus the largest one, divided by the temperature. Nothing is
// sorted: passes skip chunks of the vocabulary that have nothing above the threshold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "noise.h"
#include "sampling.h"

namespace espalier {

// A row of logits without NaN and +infinity, and the passes over it. They are those of the whole
// vocabulary, or of the tokens `ids`, ascending; tokens go by their places.
struct Logits {
  const SamplingKernels& kernels;
  const float* values;
  std::int64_t count;
  const std::int32_t* ids = nullptr;

  std::int64_t id_at(std::int64_t place) const { return ids == nullptr ? place : ids[place]; }

  // Call `visit(place, logit)` for logits of at least `least`, in order; it may raise `least`.
  template <class Visit>
  void visit_from(const float& least, const Visit& visit) const {
    for (Chunk c = kernels.next_chunk(values, 0, count, least); c.begin < count;
         c = kernels.next_chunk(values, c.end, count, least))
      for (std::int64_t i = c.begin; i < c.end; i++)
        if (values[i] >= least) visit(static_cast<std::int32_t>(i), values[i]);
  }
};

// The k-th largest logit, or -infinity if fewer than k are above that. `kept` is scratch. Of
// the logits seen, at least the k largest are kept; when too many are, the others go.
inline float kth_largest(const Logits& logits, std::int64_t k, std::vector<float>& kept) {
  float least = std::numeric_limits<float>::lowest();
  const auto drop_others = [&] {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<>());
    kept.resize(static_cast<std::size_t>(k));
    least = kept.back();
  };
  kept.clear();
  logits.visit_from(least, [&](std::int32_t, float logit) {
    kept.push_back(logit);
    if (static_cast<std::int64_t>(kept.size()) >= 2 * k + 64) drop_others();
  });
  if (static_cast<std::int64_t>(kept.size()) < k) return -std::numeric_limits<float>::infinity();
  drop_others();
  return least;
}

// Chooses a row's token; the memory is used again for the next.
class Chooser {
 public:
  // The place of the token. `peak` is the first of the largest logits, which must be finite.
  std::int32_t choose(const Logits& logits, Token peak, const SampleRow& row) {
    if (row.temperature == 0.) return peak.id;
    const Scale scale{peak.logit, row.temperature};
    float least = -std::numeric_limits<float>::infinity();
    if (row.top_k > 0) least = kth_largest(logits, row.top_k, kept_);
    double floor = min_gumbel - max_gumbel;  // what lies lower can't win against the peak
    if (row.top_p < 1.) floor = std::max(floor, nucleus_floor(logits, scale, least, row.top_p));
    if (row.min_p > 0.) floor = std::max(floor, std::log(row.min_p));
    return draw(logits, peak, scale, std::max(least, scale.logit_below(floor)), floor, row);
  }

 private:
  struct Scale {
    float peak;
    double temperature;

    double score(float logit) const { return (static_cast<double>(logit) - peak) / temperature; }
    // A logit not above any whose score is at least `score`: the slack covers rounding.
    float logit_below(double score) const {
      const double reach = score * temperature;
      const double slack = 1e-12 * (std::abs(static_cast<double>(peak)) + std::abs(reach));
      return static_cast<float>(peak + reach - slack);
    }
  };

  // The score of the last of the fewest most likely tokens, among those whose logit is at least
  // `least`, that are as probable as `top_p` together.
  double nucleus_floor(const Logits& logits, Scale scale, float least, double top_p) {
    double total = 0;
    if (std::isinf(least)) {
      total = sum_exp(logits.kernels, logits.values, logits.count, scale);
    } else {
      collect(logits, least);
      total = weight_of_kept(logits.kernels, scale);
    }
    const double needed = top_p * total, spare = total - needed;
    // Tokens that weigh less than spare / n each, and e times less for rounding's sake, are not
    // needed if there are at most n. A small n is a guess that often holds, and is checked.
    for (const double n : {1024., static_cast<double>(logits.count)}) {
      const double negligible = std::min(0., std::log(spare / n) - 1.);
      collect(logits, std::max(least, scale.logit_below(negligible)));
      if (weight_of_kept(logits.kernels, scale) >= needed) break;
    }
    return scale.score(last_needed(logits.kernels, scale, needed));
  }

  // The least of the fewest largest logits of `kept_` whose weights add up to `needed`: always
  // halve what may hold it, and weigh the upper half.
  float last_needed(const SamplingKernels& kernels, Scale scale, double needed) {
    auto begin = kept_.begin(), end = kept_.end();
    while (end - begin > 1) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, std::greater<>());
      const double upper = sum_exp(kernels, &*begin, middle - begin, scale);
      if (upper >= needed) {
        end = middle;
      } else {
        needed -= upper;
        begin = middle;
      }
    }
    return *begin;
  }

  // The place of the token with the largest sum of score and noise among those of at least logit
  // `least` and score `floor`; the lowest of equals.
  static std::int32_t draw(const Logits& logits, Token peak, Scale scale, float least,
                           double floor, const SampleRow& row) {
    const NoiseKey key(row.seed, row.choice, row.position);
    std::int32_t winner = peak.id;
    double best = gumbel(key.bits(logits.id_at(winner)));
    for (Chunk c = logits.kernels.next_chunk(logits.values, 0, logits.count, least);
         c.begin < logits.count;
         c = logits.kernels.next_chunk(logits.values, c.end, logits.count, least)) {
      const std::uint64_t least_to_win = least_bits(best - scale.score(c.peak));
      for (std::int64_t i = c.begin; i < c.end; i++) {
        const std::uint64_t bits = key.bits(logits.id_at(i));
        if (bits < least_to_win || logits.values[i] < least) continue;
        const double score = scale.score(logits.values[i]);
        if (score < floor) continue;
        const double sum = score + gumbel(bits);
        if (sum > best || (sum == best && i < winner)) {
          best = sum;
          winner = static_cast<std::int32_t>(i);
        }
      }
    }
    return winner;
  }

  static double sum_exp(const SamplingKernels& kernels, const float* values, std::int64_t count,
                        Scale scale) {
    return kernels.sum_exp(values, count, scale.peak, 1. / scale.temperature);
  }

  void collect(const Logits& logits, float least) {
    kept_.clear();
    logits.visit_from(least, [&](std::int32_t, float logit) { kept_.push_back(logit); });
  }

  double weight_of_kept(const SamplingKernels& kernels, Scale scale) const {
    return sum_exp(kernels, kept_.data(), static_cast<std::int64_t>(kept_.size()), scale);
  }

  std::vector<float> kept_;
};

}  // namespace espalier
