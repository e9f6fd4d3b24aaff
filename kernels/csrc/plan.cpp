#include "plan.h"

#include <algorithm>

#include "rows.h"

namespace espalier {
namespace {

std::uint8_t* aligned(std::vector<std::uint8_t>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (-address & 63);
}

}  // namespace

Plan::Plan(const Kernels& kernels, Pool& pool, Tables tables, AttentionShape shape)
    : kernels_(kernels), pool_(pool), tables_(tables), attention_(shape, pool.size()) {
  step_.slot_table = tables.slots;
  step_.table_stride = tables.stride;
}

void Plan::add(Op op, std::int64_t max_rows) {
  if (const LinearOp* linear = std::get_if<LinearOp>(&op)) {
    const auto needed = static_cast<std::size_t>(place_rows(*linear, max_rows, nullptr).nbytes);
    if (scratch_.size() < needed + 64) scratch_.resize(needed + 64);
  }
  if (!std::holds_alternative<SelectOp>(op) && read_out_begin_ == ops_.size()) read_out_begin_++;
  ops_.push_back(std::move(op));
}

void Plan::run(TableWrites writes, StepRows rows, Selection selection) {
  apply(writes);
  resolve(rows);
  attention_.prepare(step_);
  step_.selected.assign(selection.tokens, selection.tokens + selection.num_tokens);
  execute(0, selection.num_tokens == 0 ? read_out_begin_ : ops_.size());
}

void Plan::read_out(Selection selection) {
  step_.selected.assign(selection.tokens, selection.tokens + selection.num_tokens);
  execute(read_out_begin_, ops_.size());
}

void Plan::apply(TableWrites writes) {
  const std::int32_t* next = writes.words;
  while (next < writes.words + writes.num_words) {
    const std::int64_t place = next[0] * tables_.stride + next[1];
    const std::int64_t num_ids = next[2], num_slots = next[3];
    next += 4;
    std::copy_n(next, num_ids, tables_.ids + place);
    next += num_ids;
    std::copy_n(next, num_slots, tables_.slots + place);
    next += num_slots;
  }
}

void Plan::resolve(StepRows rows) {
  for (auto* list : {&step_.table_row, &step_.start, &step_.length, &step_.first, &step_.id,
                     &step_.position, &step_.slot})
    list->clear();
  step_.num_rows = rows.num_rows;
  for (std::int64_t i = 0; i < rows.num_rows; i++) {
    const auto [table_row, start, length] = rows.rows[i];
    step_.table_row.push_back(table_row);
    step_.start.push_back(start);
    step_.length.push_back(length);
    step_.first.push_back(static_cast<std::int32_t>(step_.id.size()));
    for (std::int32_t position = start; position < start + length; position++) {
      const std::int64_t place = table_row * tables_.stride + position;
      step_.id.push_back(tables_.ids[place]);
      step_.position.push_back(position);
      step_.slot.push_back(tables_.slots[place]);
    }
  }
  step_.num_tokens = static_cast<std::int64_t>(step_.id.size());
}

void Plan::execute(std::size_t begin, std::size_t end) {
  std::uint8_t* scratch = aligned(scratch_);
  pool_.run([&](Team& team) {
    for (std::size_t i = begin; i < end; i++) {
      const Op& op = ops_[i];
      if (const auto* linear = std::get_if<LinearOp>(&op))
        kernels_.linear(*linear, step_, scratch, team);
      else if (const auto* attention = std::get_if<AttentionOp>(&op))
        kernels_.attention(*attention, attention_, step_, team);
      else if (const auto* embed = std::get_if<EmbedOp>(&op))
        kernels_.embed(*embed, step_, team);
      else
        kernels_.select(std::get<SelectOp>(op), step_, team);
    }
  });
}

}  // namespace espalier
