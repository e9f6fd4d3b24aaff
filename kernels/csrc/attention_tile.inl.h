// Attention of a few queries to one tile, and the merge of two tiles' results. All of it has
// one order for a query, whatever stands beside it: a score is summed over the channels, lanes
// hold positions; the weighted sum of values runs over the positions, lanes hold channels.
// Positions that a query does not see are left out, not multiplied by zero: they may hold NaN.
#pragma once

#include <algorithm>

#include "attention.h"
#include "half.h"

namespace espalier::ESPALIER_ISA {

inline constexpr int max_rows = sums_at_once;  // queries that the registers take at a time
inline constexpr int max_few_rows = 6;         // how many if there are not as many as that
// Panels of keys and blocks of channels that so many rows take in one go.
template <int rows>
inline constexpr int at_a_time = rows > max_few_rows ? 2 : 1;
inline constexpr int max_rows_in_place = 3;  // for so few, keys and values are not worth packing

// How many of `count` queries to attend next: all that the registers take, or a few.
inline int rows_at_once(std::int64_t count) {
  return count >= max_rows ? max_rows : static_cast<int>(std::min<std::int64_t>(count, max_few_rows));
}

// The keys and values of one KV head in one tile. T: how the pool stores them.
template <class T>
struct KvTile {
  std::int64_t dim, stride;                        // of a head: in the pool, and padded
  const T *keys[tile_len], *values[tile_len];      // where they lie in the pool
  float key_scales[tile_len], value_scales[tile_len];  // int8 only
  const float* packed_keys;    // [4 panels][dim][16 positions], or null: read in place
  const float* packed_values;  // [64][stride], or null, as they are
};

// Results of a few queries; the arrays are padded for whole registers.
struct alignas(64) FewResults {
  float highest[16], sum[16], values[max_rows * max_head_dim];
};

inline F32 load_wide(const float* p) { return load_f32(p); }
inline F32 load_wide(const std::uint16_t* p) { return load_bf16(p); }
inline F32 load_wide(const std::int8_t* p) { return load_i8(p); }

template <class T>
inline void pack_keys(const KvTile<T>& tile, int num_panels, float* out) {
  constexpr int count = Columns<T>::count;
  for (int panel = 0; panel < num_panels; panel++, out += 16 * tile.dim) {
    std::int64_t i = 0;
    for (; i + count <= tile.dim; i += count) {
      const Columns<T> columns = load_columns(tile.keys + 16 * panel, i);
      for (int c = 0; c < count; c++) store(out + 16 * (i + c), column(columns, c));
    }
    for (; i < tile.dim; i++)
      for (int lane = 0; lane < 16; lane++)
        out[16 * i + lane] = widen(tile.keys[16 * panel + lane][i]);
  }
}

template <class T>
inline void pack_values(const KvTile<T>& tile, int num_positions, float* out) {
  for (int j = 0; j < num_positions; j++, out += tile.stride) {
    std::int64_t i = 0;
    for (; i + 16 <= tile.dim; i += 16) store(out + i, load_wide(tile.values[j] + i));
    for (; i < tile.dim; i++) out[i] = widen(tile.values[j][i]);
    for (; i < tile.stride; i++) out[i] = 0.f;
  }
}

// -- scores: out[r][16] of one panel; rows of `out` are `tile_len` apart ----------------------

// Of some panels that follow each other.
template <int rows, int panels, class Fetch>
inline void scores_packed(const float* keys, std::int64_t dim, const float* q, std::int64_t stride,
                          float* out, Fetch& ahead) {
  Fetch fetch = ahead;
  F32 score[rows][panels];
  for (int r = 0; r < rows; r++)
    for (int p = 0; p < panels; p++) score[r][p] = zero_f32();
  for (std::int64_t i = 0; i < dim; i++) {
    F32 k[panels];
    for (int p = 0; p < panels; p++) {
      fetch.line();
      k[p] = load_f32(keys + 16 * (p * dim + i));
    }
    for (int r = 0; r < rows; r++)
      for (int p = 0; p < panels; p++)
        score[r][p] = fma(set_f32(q[r * stride + i]), k[p], score[r][p]);
  }
  for (int r = 0; r < rows; r++)
    for (int p = 0; p < panels; p++) store(out + r * tile_len + 16 * p, score[r][p]);
  ahead = fetch;
}

template <int rows, class T, class Fetch>
inline void scores_in_place(const KvTile<T>& tile, int panel, const float* q, float* out,
                            Fetch& ahead) {
  Fetch fetch = ahead;
  F32 score[rows];
  for (int r = 0; r < rows; r++) score[r] = zero_f32();
  for (std::int64_t i = 0; i < tile.dim; i += Columns<T>::count) {
    const Columns<T> columns = load_columns(tile.keys + 16 * panel, i);
    for (int c = 0; c < Columns<T>::count; c++) {
      fetch.line();
      const F32 k = column(columns, c);
      for (int r = 0; r < rows; r++)
        score[r] = fma(set_f32(q[r * tile.stride + i + c]), k, score[r]);
    }
  }
  for (int r = 0; r < rows; r++) store(out + r * tile_len, score[r]);
  ahead = fetch;
}

// -- softmax of the first `visible` scores of each row, in place --------------------------------

// Scales of keys multiply the scores, scales of values what the values are multiplied by.
template <int rows, class T>
inline void softmax(const KvTile<T>& tile, float* scores, const int* visible, float* highest,
                    float* total) {
  for (int r = 0; r < rows; r++) {
    float* row = scores + r * tile_len;
    if constexpr (is_scaled<T>)
      for (int j = 0; j < visible[r]; j += 16)
        store(row + j, mul(load_f32(row + j), load_f32(tile.key_scales + j)));
    for (int j = visible[r]; j < tile_len; j++) row[j] = -__builtin_inff();
    highest[r] = largest(max(max(load_f32(row), load_f32(row + 16)),
                             max(load_f32(row + 32), load_f32(row + 48))));
  }
  for (int r = 0; r < rows; r++) {
    float* row = scores + r * tile_len;
    F32 sums = zero_f32();
    for (int j = 0; j < tile_len; j += 16) {
      const F32 p = exp_below_zero(sub(load_f32(row + j), set_f32(highest[r])));
      sums = add(sums, p);
      store(row + j, is_scaled<T> ? mul(p, load_f32(tile.value_scales + j)) : p);
    }
    total[r] = sum(sums);
  }
}

// -- values: out[r] (+)= weights[r][j] * value(j) for positions [begin, end) ------------------

template <int rows, int blocks, class Value, class Fetch>
inline void add_channels(const Value& value, const float* weights, int begin, int end,
                         std::int64_t channel, float* out, std::int64_t stride, Fetch& ahead) {
  Fetch fetch = ahead;
  F32 total[rows][blocks];
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++)
      total[r][b] = begin == 0 ? zero_f32() : load_f32(out + r * stride + channel + 16 * b);
  for (int j = begin; j < end; j++) {
    F32 v[blocks];
    for (int b = 0; b < blocks; b++) {
      fetch.line();
      v[b] = value(j, channel + 16 * b);
    }
    for (int r = 0; r < rows; r++)
      for (int b = 0; b < blocks; b++)
        total[r][b] = fma(set_f32(weights[r * tile_len + j]), v[b], total[r][b]);
  }
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++) store(out + r * stride + channel + 16 * b, total[r][b]);
  ahead = fetch;
}

template <int rows, class Value, class Fetch>
inline void add_values(const Value& value, const float* weights, int begin, int end, float* out,
                       std::int64_t stride, Fetch& ahead) {
  constexpr int blocks = rows == 1 ? 4 : rows == 2 ? 2 : at_a_time<rows>;
  std::int64_t channel = 0;
  for (; channel + 16 * blocks <= stride; channel += 16 * blocks)
    add_channels<rows, blocks>(value, weights, begin, end, channel, out, stride, ahead);
  for (; channel < stride; channel += 16)
    add_channels<rows, 1>(value, weights, begin, end, channel, out, stride, ahead);
}

// -- all of it ----------------------------------------------------------------------------

// How many positions of the tile each query sees.
template <int rows>
struct Visible {
  int count[rows], least = tile_len, most = 0;

  Visible(const std::int32_t* positions, std::int32_t tile) {
    for (int r = 0; r < rows; r++) {
      count[r] = std::clamp(positions[r] + 1 - tile * tile_len, 0, tile_len);
      least = std::min(least, count[r]);
      most = std::max(most, count[r]);
    }
  }
};

// Results of queries q[rows][stride] at `positions` in the tile. What a query gets that sees
// nothing of it is for nobody to read.
template <int rows, class T, class Fetch>
inline void attend(const KvTile<T>& kv, std::int32_t tile, const float* q,
                   const std::int32_t* positions, FewResults& out, Fetch& ahead) {
  alignas(64) float weights[rows * tile_len];
  const Visible<rows> visible(positions, tile);
  const bool in_place = rows <= max_rows_in_place && kv.packed_keys == nullptr;
  int panel = 0;
  if constexpr (at_a_time<rows> == 2)
    if (!in_place)
      for (; 16 * (panel + 1) < visible.most; panel += 2)
        scores_packed<rows, 2>(kv.packed_keys + 16 * panel * kv.dim, kv.dim, q, kv.stride,
                               weights + 16 * panel, ahead);
  for (; 16 * panel < visible.most; panel++) {
    if (in_place)
      scores_in_place<std::min(rows, max_rows_in_place)>(kv, panel, q, weights + 16 * panel,
                                                         ahead);
    else
      scores_packed<rows, 1>(kv.packed_keys + 16 * panel * kv.dim, kv.dim, q, kv.stride,
                             weights + 16 * panel, ahead);
  }
  softmax<rows>(kv, weights, visible.count, out.highest, out.sum);
  const auto add = [&](const auto& value) {
    add_values<rows>(value, weights, 0, visible.least, out.values, kv.stride, ahead);
    for (int r = 0; r < rows; r++)
      if (visible.count[r] > visible.least)
        add_values<1>(value, weights + r * tile_len, visible.least, visible.count[r],
                      out.values + r * kv.stride, kv.stride, ahead);
  };
  if (in_place)
    add([&](int j, std::int64_t channel) { return load_wide(kv.values[j] + channel); });
  else
    add([&](int j, std::int64_t channel) {
      return load_f32(kv.packed_values + j * kv.stride + channel);
    });
}

// rows: what `rows_at_once` has said.
template <class T, class Fetch>
inline void attend(int rows, const KvTile<T>& kv, std::int32_t tile, const float* q,
                   const std::int32_t* positions, FewResults& out, Fetch& ahead) {
  switch (rows) {
    case 1: return attend<1>(kv, tile, q, positions, out, ahead);
    case 2: return attend<2>(kv, tile, q, positions, out, ahead);
    case 3: return attend<3>(kv, tile, q, positions, out, ahead);
    case 4: return attend<4>(kv, tile, q, positions, out, ahead);
    case 5: return attend<5>(kv, tile, q, positions, out, ahead);
    case 6: return attend<6>(kv, tile, q, positions, out, ahead);
    default: return attend<max_rows>(kv, tile, q, positions, out, ahead);
  }
}

// state := results in the tiles so far and in the next one (M. Milakov, N. Gimelshein, "Online
// normalizer calculation for softmax"). Highest scores and sums are read up to 15 floats past
// their end.
inline void merge(const PartialResults& state, const PartialResults& next, std::int64_t rows,
                  std::int64_t stride) {
  for (std::int64_t first = 0; first < rows; first += 16) {
    const std::int64_t count = std::min<std::int64_t>(16, rows - first);
    const F32 before = load_f32(state.highest + first), now = load_f32(next.highest + first);
    const F32 highest = max(before, now);
    const F32 keep = exp_below_zero(sub(before, highest));
    const F32 take = exp_below_zero(sub(now, highest));
    const F32 total = fma(load_f32(next.sum + first), take, mul(load_f32(state.sum + first), keep));
    store_within(state.highest + first, 0, count, highest);
    store_within(state.sum + first, 0, count, total);
    alignas(64) float keeps[16], takes[16];
    store(keeps, keep);
    store(takes, take);
    for (std::int64_t r = 0; r < count; r++) {
      float* to = state.values + (first + r) * stride;
      const float* from = next.values + (first + r) * stride;
      for (std::int64_t i = 0; i < stride; i += 16)
        store(to + i, fma(load_f32(from + i), set_f32(takes[r]),
                          mul(load_f32(to + i), set_f32(keeps[r]))));
    }
  }
}

}  // namespace espalier::ESPALIER_ISA
