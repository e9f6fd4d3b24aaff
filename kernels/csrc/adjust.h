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
  // The adjusted logits, valid until the next call. All ids must be known. `ids`: whose logits
  // these are, ascending, all of them allowed; null: those of the whole vocabulary.
  const float* adjust(const float* logits, std::int64_t count, const std::int32_t* ids,
                      const SampleRow& row) {
    logits_.assign(logits, logits + count);
    counts_.resize(logits_.size());  // all 0 between two calls
    ids_ = ids;
    if (row.repetition_penalty != 1.f) {
      repel(row.prompt_ids, row.num_prompt_ids, row.repetition_penalty);
      repel(row.output_ids, row.num_output_ids, row.repetition_penalty);
      forget(row.prompt_ids, row.num_prompt_ids);
      forget(row.output_ids, row.num_output_ids);
    }
    if (has_counts(row)) discourage(row);
    for (std::int64_t i = 0; i < row.num_biases; i++)
      each(row.bias_ids + i, 1, [&](float& logit, std::uint32_t&) { logit += row.biases[i]; });
    bound(row.prompt_ids, row.num_prompt_ids);
    bound(row.output_ids, row.num_output_ids);
    bound(row.bias_ids, row.num_biases);
    if (ids == nullptr) {
      each(row.banned_ids, row.num_banned_ids,
           [](float& logit, std::uint32_t&) { logit = never; });
      if (row.bitmask != nullptr) mask(row.bitmask);
    }
    return logits_.data();
  }

 private:
  // Call `change(logit, count)` for each of the tokens that are among these.
  template <class Change>
  void each(const std::int32_t* ids, std::int64_t num_ids, const Change& change) {
    for (std::int64_t i = 0; i < num_ids; i++) {
      std::int64_t place = ids[i];
      if (ids_ != nullptr) {
        const std::int32_t* end = ids_ + logits_.size();
        const std::int32_t* found = std::lower_bound(ids_, end, ids[i]);
        if (found == end || *found != ids[i]) continue;
        place = found - ids_;
      }
      change(logits_[static_cast<std::size_t>(place)], counts_[static_cast<std::size_t>(place)]);
    }
  }

  // Once for each id: positive logits shrink, negative ones grow.
  void repel(const std::int32_t* ids, std::int64_t num_ids, float penalty) {
    each(ids, num_ids, [&](float& logit, std::uint32_t& count) {
      if (count++ > 0 || logit == never) return;
      logit = logit > 0.f ? logit / penalty : logit * penalty;
    });
  }

  // Frequency for each occurrence in the output, presence once.
  void discourage(const SampleRow& row) {
    each(row.output_ids, row.num_output_ids, [](float&, std::uint32_t& count) { count++; });
    each(row.output_ids, row.num_output_ids, [&](float& logit, std::uint32_t& count) {
      if (count == 0) return;
      logit -= row.frequency_penalty * static_cast<float>(count) + row.presence_penalty;
      count = 0;
    });
  }

  void forget(const std::int32_t* ids, std::int64_t num_ids) {
    each(ids, num_ids, [](float&, std::uint32_t& count) { count = 0; });
  }

  // A tiny repetition penalty may have made a logit infinite.
  void bound(const std::int32_t* ids, std::int64_t num_ids) {
    each(ids, num_ids, [](float& logit, std::uint32_t&) {
      logit = std::min(logit, std::numeric_limits<float>::max());
    });
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
  const std::int32_t* ids_ = nullptr;
};

}  // namespace espalier
