// A model's forward pass as a list of operations on fixed buffers, and the steps that it runs.
// Knows no instruction set and no Python.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "attention.h"
#include "ops.h"
#include "pool.h"

namespace espalier {

// The device's memory of requests, by table row and position; owned by Python.
struct Tables {
  std::int32_t* ids;
  std::int32_t* slots;
  std::int64_t stride;  // positions of a row
};

// What a step begins with, in one array of int32, one after the other:
//   table row, start, number of ids, number of slots, the ids, the slots
// The ids and the slots go to positions [start, ...) of the row.
struct TableWrites {
  const std::int32_t* words;
  std::int64_t num_words;
};

// Row i: table row, start, number of new tokens.
struct StepRows {
  const std::int32_t (*rows)[3];
  std::int64_t num_rows;
};

struct Selection {
  const std::int32_t* tokens;
  std::int64_t num_tokens;
};

using Op = std::variant<EmbedOp, LinearOp, AttentionOp, SelectOp>;

// Operations run in the order in which they were added. Those from the first `SelectOp` on are
// the read-out: they turn the hidden states of selected tokens into logits, and can be run
// again for other tokens of the same step.
class Plan {
 public:
  Plan(const Kernels& kernels, Pool& pool, Tables tables, AttentionShape shape);

  // `max_rows`: how many rows a linear operation will have at most.
  void add(Op op, std::int64_t max_rows);

  // Apply the writes, compute the rows' hidden states and read the selection out.
  void run(TableWrites writes, StepRows rows, Selection selection);

  // Read other tokens of the last step out.
  void read_out(Selection selection);

 private:
  void apply(TableWrites writes);
  void resolve(StepRows rows);
  void execute(std::size_t begin, std::size_t end);

  const Kernels& kernels_;
  Pool& pool_;
  const Tables tables_;
  AttentionStep attention_;
  Step step_;
  std::vector<Op> ops_;
  std::size_t read_out_begin_ = 0;
  std::vector<std::uint8_t> scratch_;  // of one linear operation at a time
};

}  // namespace espalier
