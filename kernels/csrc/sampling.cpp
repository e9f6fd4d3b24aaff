// Rows of logits to tokens and log-probabilities; how a token is chosen is choose.h's matter.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "adjust.h"
#include "choose.h"

namespace espalier {
namespace {

// Tokens that a mask may leave so that theirs are the only logits that are read.
constexpr std::int64_t max_few = 4096;

// One thread's memory for the row at hand.
struct RowMemory {
  Adjuster adjuster;
  Chooser chooser;
  std::vector<float> kept;
  std::vector<Token> candidates;
  std::vector<std::int32_t> few_ids;
  std::vector<float> few_logits;
};

RowMemory& row_memory() {
  thread_local RowMemory own;
  return own;
}

// log(sum(exp(logits))), so that a logit less this is its log-probability.
double normalizer(const Logits& logits, float peak) {
  return peak + std::log(logits.kernels.sum_exp(logits.values, logits.count, peak, 1.));
}

// The `num_top` most likely tokens, of equally likely ones the lower ids, most likely first.
void write_tops(const Logits& logits, double normalizer, std::int64_t num_top, TopLogprob* out) {
  if (num_top == 0) return;
  RowMemory& own = row_memory();
  const float least = kth_largest(logits, num_top, own.kept);
  own.candidates.clear();
  logits.visit_from(least, [&](std::int32_t id, float logit) {
    own.candidates.push_back({id, logit});
  });
  const auto end = own.candidates.begin() + num_top;
  std::partial_sort(own.candidates.begin(), end, own.candidates.end(), [](Token a, Token b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  std::transform(own.candidates.begin(), end, out, [&](Token token) {
    return TopLogprob{token.id, 0, token.logit - normalizer};
  });
}

SampleResult failed(Failure failure) {
  return {-1, failure, std::numeric_limits<double>::quiet_NaN()};
}

// The token's place, or -1 where none is allowed. `peak` is that of the raw logits.
std::int32_t choose(Logits logits, Token peak, const SampleRow& row) {
  const bool changes_order = has_penalties(row) || row.num_biases > 0;
  const bool forbids = logits.ids == nullptr && (row.num_banned_ids > 0 || row.bitmask != nullptr);
  const bool is_greedy = row.temperature == 0.;
  if (changes_order || (forbids && !(is_greedy && is_allowed(row, peak.id)))) {
    logits.values = row_memory().adjuster.adjust(logits.values, logits.count, logits.ids, row);
    peak = logits.kernels.find_peak(logits.values, logits.count);
  }
  return peak.logit == never ? -1 : row_memory().chooser.choose(logits, peak, row);
}

// The tokens of a mask that leaves `max_few` or fewer, ascending; false if it leaves more.
bool find_few(const SampleRow& row, std::int64_t vocab_size, std::vector<std::int32_t>& ids) {
  const auto word_at = [&](std::int64_t i) {
    const std::int64_t num_bits = vocab_size - 32 * i;
    return num_bits >= 32 ? row.bitmask[i] : row.bitmask[i] & ((1u << num_bits) - 1);
  };
  const std::int64_t num_words = (vocab_size + 31) / 32;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < num_words && count <= max_few; i++)
    count += std::popcount(word_at(i));
  if (count > max_few) return false;
  ids.clear();
  for (std::int64_t i = 0; i < num_words; i++)
    for (std::uint32_t word = word_at(i); word != 0; word &= word - 1)
      ids.push_back(static_cast<std::int32_t>(32 * i + std::countr_zero(word)));
  for (std::int64_t i = 0; i < row.num_banned_ids; i++) {
    const auto found = std::lower_bound(ids.begin(), ids.end(), row.banned_ids[i]);
    if (found != ids.end() && *found == row.banned_ids[i]) ids.erase(found);
  }
  return true;
}

// Of these few tokens: no other logit is read, and none if there is no choice.
SampleResult sample_few(const Logits& logits, const SampleRow& row,
                        const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return failed(Failure::no_token);
  if (ids.size() == 1) return {ids[0], Failure::none, 0.};
  std::vector<float>& values = row_memory().few_logits;
  values.resize(ids.size());
  std::transform(ids.begin(), ids.end(), values.begin(),
                 [&](std::int32_t id) { return logits.values[id]; });
  const auto count = static_cast<std::int64_t>(values.size());
  const Logits few{logits.kernels, values.data(), count, ids.data()};
  const Token peak = few.kernels.find_peak(few.values, count);
  if (std::isnan(peak.logit)) return failed(Failure::not_finite);
  const std::int32_t place = choose(few, peak, row);
  if (place < 0) return failed(Failure::no_token);
  return {ids[static_cast<std::size_t>(place)], Failure::none, 0.};
}

SampleResult sample_row(const Logits& logits, const SampleRow& row, TopLogprob* tops) {
  if (!knows_ids(row, logits.count)) return failed(Failure::unknown_id);
  std::vector<std::int32_t>& few_ids = row_memory().few_ids;
  if (row.bitmask != nullptr && row.num_top < 0 && find_few(row, logits.count, few_ids))
    return sample_few(logits, row, few_ids);
  const Token peak = logits.kernels.find_peak(logits.values, logits.count);
  if (std::isnan(peak.logit)) return failed(Failure::not_finite);
  const std::int32_t token_id = choose(logits, peak, row);
  if (token_id < 0) return failed(Failure::no_token);
  if (row.num_top < 0) return {token_id, Failure::none, 0.};
  const double whole = normalizer(logits, peak.logit);
  write_tops(logits, whole, row.num_top, tops + row.first_top);
  return {token_id, Failure::none, logits.values[token_id] - whole};
}

// The target's log-probability.
double find_row_logprobs(const Logits& logits, std::int32_t target, std::int64_t num_top,
                         TopLogprob* tops) {
  const float peak = logits.kernels.find_peak(logits.values, logits.count).logit;
  if (!std::isfinite(peak)) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    std::fill_n(tops, num_top, TopLogprob{-1, 0, nan});
    return nan;
  }
  const double whole = normalizer(logits, peak);
  write_tops(logits, whole, num_top, tops);
  return logits.values[target] - whole;
}

void do_row(const SampleOp& op, const SamplingKernels& kernels, std::int64_t row) {
  const Logits logits{kernels, op.logits + row * op.stride, op.vocab_size, nullptr};
  op.results[row] = sample_row(logits, op.rows[row], op.tops);
}

void do_row(const LogprobsOp& op, const SamplingKernels& kernels, std::int64_t row) {
  const Logits logits{kernels, op.logits + row * op.stride, op.vocab_size, nullptr};
  TopLogprob* tops = op.tops + row * op.num_top;
  op.logprobs[row] = find_row_logprobs(logits, op.targets[row], op.num_top, tops);
}

template <class Op>
void do_rows(const Op& op, const SamplingKernels& kernels, Team& team) {
  team.take(op.num_rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; row++) do_row(op, kernels, row);
  });
  team.barrier();
}

template <class Op>
void do_rows(const Op& op, const SamplingKernels& kernels, Pool& pool) {
  if (op.num_rows == 1)
    do_row(op, kernels, 0);
  else
    pool.run([&](Team& team) { do_rows(op, kernels, team); });
}

}  // namespace

void sample(const SampleOp& op, const SamplingKernels& kernels, Pool& pool) {
  do_rows(op, kernels, pool);
}
void sample(const SampleOp& op, const SamplingKernels& kernels, Team& team) {
  do_rows(op, kernels, team);
}
void find_logprobs(const LogprobsOp& op, const SamplingKernels& kernels, Pool& pool) {
  do_rows(op, kernels, pool);
}
void find_logprobs(const LogprobsOp& op, const SamplingKernels& kernels, Team& team) {
  do_rows(op, kernels, team);
}

}  // namespace espalier
