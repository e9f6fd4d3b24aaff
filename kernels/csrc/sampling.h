// Choosing tokens from logits, and log-probabilities: what crosses the border to Python, and
// what an instruction set provides. Knows neither Python nor how a token is chosen.
//
// runtime/sampling/native.py fills these structs as numpy records, field by field; the
// specification is runtime/sampling/sampler.py. Pointers may be null where a count is 0.
#pragma once

#include <cstdint>

#include "pool.h"

namespace espalier {

// How to sample one row. Ids in any order, and repeated but for bias_ids; `bitmask` (or null)
// has bit i % 32 of word i / 32 for token i, 1 where it is allowed. Where it allows few and no
// log-probabilities are wanted, no other logits are read.
struct SampleRow {
  const std::int32_t* prompt_ids;
  std::int64_t num_prompt_ids;
  const std::int32_t* output_ids;
  std::int64_t num_output_ids;
  const std::int32_t* banned_ids;
  std::int64_t num_banned_ids;
  const std::int32_t* bias_ids;
  const float* biases;  // one for each of bias_ids
  std::int64_t num_biases;
  const std::uint32_t* bitmask;
  std::uint64_t seed, choice, position;
  double temperature, top_p, min_p;
  float repetition_penalty, frequency_penalty, presence_penalty;
  std::int32_t top_k;      // -1: all
  std::int32_t num_top;    // most likely tokens to report, at most the vocabulary; -1: no
                           // log-probabilities at all
  std::int32_t first_top;  // where they go in the list of all rows' most likely tokens
};
static_assert(sizeof(SampleRow) == 152);

enum class Failure : std::int32_t { none, not_finite, no_token, unknown_id };

struct SampleResult {
  std::int32_t token_id;  // -1 with a failure
  Failure failure;
  double logprob;  // where asked for
};
static_assert(sizeof(SampleResult) == 16);

struct TopLogprob {
  std::int32_t token_id;
  std::int32_t unused;
  double logprob;
};
static_assert(sizeof(TopLogprob) == 16);

// A token and its logit; also the first of the most likely ones.
struct Token {
  std::int32_t id;
  float logit;
};

// Tokens [begin, end), of which `peak` is the largest logit.
struct Chunk {
  std::int64_t begin, end;
  float peak;
};

// Passes over a row of logits, once for each instruction set.
struct SamplingKernels {
  // The first of the largest logits; the logit is NaN if any logit is NaN or +infinity.
  Token (*find_peak)(const float* logits, std::int64_t count);
  // The sum of exp((logit - shift) * scale), in double. No logit may be above `shift`.
  double (*sum_exp)(const float* logits, std::int64_t count, double shift, double scale);
  // The first chunk from `begin` (0, or the end of the chunk before) on with a logit of at
  // least `least`; begin == count if there is none. No logit may be NaN.
  Chunk (*next_chunk)(const float* logits, std::int64_t begin, std::int64_t count, float least);
};

// One token for each row of `logits`.
struct SampleOp {
  const float* logits;  // [num_rows] rows, `stride` floats apart; not changed
  std::int64_t stride, vocab_size, num_rows;
  const SampleRow* rows;
  SampleResult* results;
  TopLogprob* tops;
};

// For each row of `logits` the log-probability of its target and of the `num_top` most likely
// tokens. Where logits are not finite these are NaN.
struct LogprobsOp {
  const float* logits;
  std::int64_t stride, vocab_size, num_rows;
  const std::int32_t* targets;
  std::int64_t num_top;  // at most vocab_size
  double* logprobs;      // [num_rows]
  TopLogprob* tops;      // [num_rows][num_top]
};

// A row is one thread's, from the first pass to the last: its result does not depend on the rows
// beside it. With a pool, a single row is left to the caller: no other thread is waited for.
// With a team, all of its threads call this alike, and it ends with a barrier.
void sample(const SampleOp& op, const SamplingKernels& kernels, Pool& pool);
void sample(const SampleOp& op, const SamplingKernels& kernels, Team& team);
void find_logprobs(const LogprobsOp& op, const SamplingKernels& kernels, Pool& pool);
void find_logprobs(const LogprobsOp& op, const SamplingKernels& kernels, Team& team);

}  // namespace espalier
