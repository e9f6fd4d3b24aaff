// Paged attention of one layer: keys and values of the step's tokens into the pool, then the
// units of attention.h. Two functions make every result, `attend` and `merge`.
#pragma once

#include <algorithm>

#include "attention_ahead.inl.h"
#include "attention_kv.inl.h"
#include "attention_tile.inl.h"

namespace espalier::ESPALIER_ISA {

// One thread at work in one layer. T: how the pool stores keys and values.
template <class T>
class Attention {
 public:
  Attention(const AttentionOp& op, AttentionStep& plan, const Step& step, int thread)
      : op_(op), plan_(plan), step_(step), work_(plan.workspace(thread)) {
    kv_.dim = op.head_dim;
    kv_.stride = (op.head_dim + 15) / 16 * 16;
  }

  // `next` is what the thread is likely to compute after a unit, or null.

  // Phase 1: the results of all queries of the unit's rows in its tile.
  void compute(const TileUnit& unit, const TileUnit* next) {
    std::int64_t num_queries = 0;
    for (std::int32_t i = unit.begin; i < unit.end; i++) num_queries += queries_of(plan_.row_at(i));
    if (next != nullptr) look_ahead(plan_.row_at(next->begin), next->tile, next->heads);
    for (std::int32_t kv_head = unit.heads.begin; kv_head < unit.heads.end; kv_head++)
      compute_head(unit, kv_head, num_queries);
  }

  // Phase 2: the outputs of the unit's queries.
  void compute(const BlockUnit& unit, const BlockUnit* next) {
    clear_state(unit);
    for (std::int32_t h = unit.heads.begin; h < unit.heads.end; h++)
      load_queries(unit.row, h, unit.begin, unit.end, (h - unit.heads.begin) * unit.count());
    const std::int32_t last = work_.positions[unit.count() - 1] / tile_len;
    for (std::int32_t tile = 0; tile <= last; tile++) {
      const bool is_kept = tile < plan_.num_split(unit.row);
      // Queries before this one do not see the tile.
      const std::int64_t first = std::max<std::int64_t>(
          0, (tile * tile_len - step_.start.data()[unit.row]) * group() - unit.begin);
      if (!is_kept && tile < last) look_ahead(unit.row, tile + 1, unit.heads);
      if (tile == last && next != nullptr)
        look_ahead(next->row, plan_.num_split(next->row), next->heads);
      for (std::int32_t h = unit.heads.begin; h < unit.heads.end; h++)
        is_kept ? merge_kept(unit, tile, h, first) : merge_tile(unit, tile, h, first);
    }
    for (std::int32_t h = unit.heads.begin; h < unit.heads.end; h++) store_outputs(unit, h);
  }

 private:
  std::int64_t group() const { return op_.num_heads / op_.num_kv_heads; }
  std::int64_t queries_of(std::int64_t row) const { return step_.length.data()[row] * group(); }

  // -- queries and outputs

  // Queries [begin, end) of a row, rotated and scaled, to places from `to` on.
  void load_queries(std::int64_t row, int kv_head, std::int64_t begin, std::int64_t end,
                    std::int64_t to) {
    const std::int64_t dim = kv_.dim, width = (op_.num_heads + 2 * op_.num_kv_heads) * dim;
    for (std::int64_t q = begin; q < end; q++, to++) {
      const std::int64_t token = step_.first.data()[row] + q / group();
      const std::int64_t head = kv_head * group() + q % group();
      work_.positions[to] = step_.position.data()[token];
      const std::int64_t angles = work_.positions[to] * (dim / 2);
      rotate(op_.qkv + token * width + head * dim, op_.cos + angles, op_.sin + angles, op_.scale,
             dim, work_.queries + to * kv_.stride);
    }
  }

  void clear_state(const BlockUnit& unit) const {
    const std::int64_t count = unit.heads.count() * unit.count();
    std::fill_n(work_.state.highest, count, -__builtin_inff());
    std::fill_n(work_.state.sum, count, 0.f);
    std::fill_n(work_.state.values, count * kv_.stride, 0.f);
  }

  void store_outputs(const BlockUnit& unit, std::int32_t kv_head) const {
    const PartialResults from = state(unit, kv_head, 0);
    for (std::int64_t q = unit.begin; q < unit.end; q++) {
      const std::int64_t token = step_.first.data()[unit.row] + q / group();
      const std::int64_t head = kv_head * group() + q % group();
      float* out = op_.out + (token * op_.num_heads + head) * kv_.dim;
      const float* values = from.values + (q - unit.begin) * kv_.stride;
      const F32 total = set_f32(from.sum[q - unit.begin]);
      for (std::int64_t i = 0; i < kv_.dim; i += 16)
        store_within(out, i, kv_.dim, div(load_f32(values + i), total));
    }
  }

  // The results so far of the block's queries from `first` on.
  PartialResults state(const BlockUnit& unit, std::int32_t kv_head, std::int64_t first) const {
    return work_.state.from((kv_head - unit.heads.begin) * unit.count() + first, kv_.stride);
  }

  // -- tiles

  void compute_head(const TileUnit& unit, std::int32_t kv_head, std::int64_t num_queries) {
    std::int64_t to = 0;
    for (std::int32_t i = unit.begin; i < unit.end; i++) {
      const std::int64_t row = plan_.row_at(i);
      load_queries(row, kv_head, 0, queries_of(row), to);
      to += queries_of(row);
    }
    load_tile(plan_.row_at(unit.begin), unit.tile, kv_head, num_queries);
    std::int32_t i = unit.begin;
    std::int64_t query = 0;  // of row i
    FewResults results;
    for (std::int64_t first = 0, rows; first < num_queries; first += rows) {
      rows = attend_to_tile(unit.tile, first, num_queries, results);
      for (std::int64_t r = 0; r < rows; r++, query++) {
        if (query == queries_of(plan_.row_at(i))) i++, query = 0;
        keep(results, r, plan_.partial_results(plan_.row_at(i), unit.tile, kv_head), query);
      }
    }
  }

  void keep(const FewResults& results, std::int64_t r, const PartialResults& to,
            std::int64_t query) const {
    to.highest[query] = results.highest[r];
    to.sum[query] = results.sum[r];
    std::copy_n(results.values + r * kv_.stride, kv_.stride, to.values + query * kv_.stride);
  }

  void merge_kept(const BlockUnit& unit, std::int32_t tile, std::int32_t kv_head,
                  std::int64_t first) const {
    const PartialResults kept = plan_.partial_results(unit.row, tile, kv_head);
    merge(state(unit, kv_head, first), kept.from(unit.begin + first, kv_.stride),
          unit.count() - first, kv_.stride);
  }

  void merge_tile(const BlockUnit& unit, std::int32_t tile, std::int32_t kv_head,
                  std::int64_t first) {
    load_tile(unit.row, tile, kv_head, unit.count() - first);
    const std::int64_t place = (kv_head - unit.heads.begin) * unit.count();
    FewResults results;
    for (std::int64_t q = first, rows; q < unit.count(); q += rows) {
      rows = attend_to_tile(tile, place + q, place + unit.count(), results);
      merge(state(unit, kv_head, q), {results.highest, results.sum, results.values}, rows,
            kv_.stride);
    }
  }

  // Results of the queries at `first` and some more before `end`: returns how many.
  std::int64_t attend_to_tile(std::int32_t tile, std::int64_t first, std::int64_t end,
                              FewResults& results) {
    const int rows = rows_at_once(end - first);
    const float* queries = work_.queries + first * kv_.stride;
    const std::int32_t* positions = work_.positions + first;
    if (NothingAhead nothing; ahead_.is_done())
      attend(rows, kv_, tile, queries, positions, results, nothing);
    else
      attend(rows, kv_, tile, queries, positions, results, ahead_);
    return rows;
  }

  void load_tile(std::int64_t row, std::int32_t tile, std::int32_t kv_head,
                 std::int64_t num_queries) {
    const std::int32_t length = filled(row, tile);
    const std::int32_t padded = (length + 15) / 16 * 16;
    const std::int32_t* slots = step_.slots_of(row) + tile * tile_len;
    const T* const k_pool = static_cast<const T*>(op_.k_pool);
    const T* const v_pool = static_cast<const T*>(op_.v_pool);
    for (std::int32_t j = 0; j < padded; j++) {  // lanes past the end are not used, but read
      const std::int64_t at =
          slots[j < length ? j : 0] * std::int64_t{op_.num_kv_heads} + kv_head;
      kv_.keys[j] = k_pool + at * kv_.dim;
      kv_.values[j] = v_pool + at * kv_.dim;
      if constexpr (is_scaled<T>) {
        kv_.key_scales[j] = op_.k_scales[at];
        kv_.value_scales[j] = op_.v_scales[at];
      }
    }
    const bool in_place = num_queries <= max_rows_in_place && kv_.dim == kv_.stride;
    kv_.packed_keys = in_place ? nullptr : work_.keys;
    kv_.packed_values = in_place ? nullptr : work_.values;
    if (in_place) return;
    pack_keys(kv_, padded / 16, work_.keys);
    pack_values(kv_, length, work_.values);
  }

  // Positions of the tile that the row has.
  std::int32_t filled(std::int64_t row, std::int32_t tile) const {
    const std::int32_t end = step_.start.data()[row] + step_.length.data()[row];
    return std::min(tile_len, end - tile * tile_len);
  }

  // Have a tile, if the row has it, brought into the cache while another one is computed.
  void look_ahead(std::int64_t row, std::int32_t tile, const Heads& heads) {
    if (filled(row, tile) <= 0) return;
    const auto head_nbytes = static_cast<std::int64_t>(sizeof(T)) * kv_.dim;
    const std::int64_t skipped = heads.begin * head_nbytes;
    ahead_ = Ahead(step_.slots_of(row) + tile * tile_len, filled(row, tile),
                   static_cast<const char*>(op_.k_pool) + skipped,
                   static_cast<const char*>(op_.v_pool) + skipped, heads.count() * head_nbytes,
                   op_.num_kv_heads * head_nbytes);
  }

  const AttentionOp& op_;
  AttentionStep& plan_;
  const Step& step_;
  const Workspace work_;
  KvTile<T> kv_ = {};
  Ahead ahead_;
};

template <class T>
inline void attention_in(const AttentionOp& op, AttentionStep& plan, const Step& step,
                         Team& team) {
  team.take(step.num_tokens, team.grain(step.num_tokens),
            [&](std::int64_t begin, std::int64_t end) { write_kv<T>(op, step, begin, end); });
  team.barrier();
  Attention<T> attention(op, plan, step, team.index());
  const auto compute_all = [&](const auto& units) {
    const auto count = static_cast<std::int64_t>(units.size());
    const std::int64_t stride = team.stride(count, 1);
    team.take(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i++) {
        const std::int64_t next = i + stride;
        attention.compute(units.data()[i], next < count ? &units.data()[next] : nullptr);
      }
    });
    team.barrier();
  };
  if (!plan.tile_units().empty()) compute_all(plan.tile_units());
  compute_all(plan.block_units());
}

inline void attention(const AttentionOp& op, AttentionStep& plan, const Step& step, Team& team) {
  switch (op.kv_format) {
    case KVFormat::f32: return attention_in<float>(op, plan, step, team);
    case KVFormat::bf16: return attention_in<std::uint16_t>(op, plan, step, team);
    case KVFormat::i8: return attention_in<std::int8_t>(op, plan, step, team);
  }
}

}  // namespace espalier::ESPALIER_ISA
