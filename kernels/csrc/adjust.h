// What a row's request does to its logits before a token is chosen: penalties, biases, banned
// ids and bitmask, in this order; knows nothing of probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "sampling.h"

namespace espalier {

// The logit of a token that can't be sampled.
inline constexpr float never = -std::numeric_limits<float>::infinity();

inline bool has_counts(const SampleRow& row) {
  return row.frequency_penalty != 0.f || row.presence_penalty != 0.f;
}

inline bool has_penalties(const SampleRow& row) {
  return row.repetition_penalty != 1.f || has_counts(row);
}

inline bool is_allowed(const SampleRow& row, std::int32_t id) {
  const std::int32_t* end = row.banned_ids + row.num_banned_ids;
  if (std::find(row.banned_ids, end, id) != end) return false;
  return row.bitmask == nullptr || (row.bitmask[id / 32] >> (id % 32) & 1) != 0;
}

// Whether every id of the row is one of the vocabulary.
inline bool knows_ids(const SampleRow& row, std::int64_t vocab_size) {
  const auto known = [&](const std::int32_t* ids, std::int64_t count) {
    return std::all_of(ids, ids + count, [&](std::int32_t id) {
      return id >= 0 && id < vocab_size;
    });
  };
  return known(row.prompt_ids, row.num_prompt_ids) && known(row.output_ids, row.num_output_ids) &&
         known(row.banned_ids, row.num_banned_ids) && known(row.bias_ids, row.num_biases);
}

// Applies a row's adjustments to a copy of its logits; the memory is used again for the next.
class Adjuster {
 public:
  // The adjusted logits, valid until the next call. All ids must be known.
  const float* adjust(const float* logits, std::int64_t vocab_size, const SampleRow& row) {
    logits_.assign(logits, logits + vocab_size);
    counts_.resize(logits_.size());  // all 0 between two calls
    if (row.repetition_penalty != 1.f) {
      repel(row.prompt_ids, row.num_prompt_ids, row.repetition_penalty);
      repel(row.output_ids, row.num_output_ids, row.repetition_penalty);
      forget(row.prompt_ids, row.num_prompt_ids);
      forget(row.output_ids, row.num_output_ids);
    }
    if (has_counts(row)) discourage(row);
    for (std::int64_t i = 0; i < row.num_biases; i++) at(row.bias_ids[i]) += row.biases[i];
    bound(row.prompt_ids, row.num_prompt_ids);
    bound(row.output_ids, row.num_output_ids);
    bound(row.bias_ids, row.num_biases);
    for (std::int64_t i = 0; i < row.num_banned_ids; i++) at(row.banned_ids[i]) = never;
    if (row.bitmask != nullptr) mask(row.bitmask);
    return logits_.data();
  }

 private:
  float& at(std::int32_t id) { return logits_[static_cast<std::size_t>(id)]; }
  std::uint32_t& count(std::int32_t id) { return counts_[static_cast<std::size_t>(id)]; }

  // Once for each id: positive logits shrink, negative ones grow.
  void repel(const std::int32_t* ids, std::int64_t num_ids, float penalty) {
    for (std::int64_t i = 0; i < num_ids; i++) {
      float& logit = at(ids[i]);
      if (count(ids[i])++ > 0 || logit == never) continue;
      logit = logit > 0.f ? logit / penalty : logit * penalty;
    }
  }

  // Frequency for each occurrence in the output, presence once.
  void discourage(const SampleRow& row) {
    for (std::int64_t i = 0; i < row.num_output_ids; i++) count(row.output_ids[i])++;
    for (std::int64_t i = 0; i < row.num_output_ids; i++) {
      const std::int32_t id = row.output_ids[i];
      if (count(id) == 0) continue;
      at(id) -= row.frequency_penalty * static_cast<float>(count(id)) + row.presence_penalty;
      count(id) = 0;
    }
  }

  void forget(const std::int32_t* ids, std::int64_t num_ids) {
    for (std::int64_t i = 0; i < num_ids; i++) count(ids[i]) = 0;
  }

  // A tiny repetition penalty may have made a logit infinite.
  void bound(const std::int32_t* ids, std::int64_t num_ids) {
    for (std::int64_t i = 0; i < num_ids; i++)
      at(ids[i]) = std::min(at(ids[i]), std::numeric_limits<float>::max());
  }

  void mask(const std::uint32_t* words) {
    for (std::size_t begin = 0; begin < logits_.size(); begin += 32) {
      const std::uint32_t word = words[begin / 32];
      if (word == 0xFFFFFFFF) continue;
      const std::size_t end = std::min(begin + 32, logits_.size());
      for (std::size_t id = begin; id < end; id++)
        if ((word >> (id - begin) & 1) == 0) logits_[id] = never;
    }
  }

  std::vector<float> logits_;
  std::vector<std::uint32_t> counts_;
};

}  // namespace espalier
