// How the attention of one step is dealt out: who computes which query in which tile. Knows no
// layer and no instruction set; made once a step, used by every layer.
//
// A *tile* is 64 positions of a row at a fixed place, [64 t, 64 t + 64). A *query* is one head
// of one new token; a row has `length * group` of them for each KV head, token by token, where
// group = H / K. A query's result is the merge of its partial results in the tiles it sees, in
// the order of tiles. That is what the bits depend on, and all that follows only chooses who
// computes what:
//
//   phase 1   TileUnit: one tile for all rows that keep it in the same slots. The partial
//             results of a row's first `num_split` tiles are left in memory.
//   phase 2   BlockUnit: up to 96 queries of a row. Merges what phase 1 has left, then computes
//             the other tiles and merges them as they come.
//
// A unit is of as many KV heads as leave enough units for all threads: a slot's heads lie side
// by side in memory, and to read them together is three times as fast as one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops.h"

namespace espalier {

inline constexpr int tile_len = 64;
inline constexpr int max_head_dim = 256;

struct AttentionShape {
  std::int32_t num_heads, num_kv_heads, head_dim;

  int group() const { return num_heads / num_kv_heads; }
  int padded_dim() const { return (head_dim + 15) / 16 * 16; }
};

// KV heads [begin, end).
struct Heads {
  std::int32_t begin, end;

  std::int32_t count() const { return end - begin; }
};

// Rows row_at(begin) .. row_at(end - 1) of the step.
struct TileUnit {
  std::int32_t tile, begin, end;
  Heads heads;
};

// Queries [begin, end) of a row; with several heads, of each.
struct BlockUnit {
  std::int32_t row, begin, end;
  Heads heads;
  std::int64_t cost;

  std::int64_t count() const { return end - begin; }
};

// Partial results of queries: the highest score, the sum of exp(score - highest), and the sum
// of values weighted so, [query][padded_dim].
struct PartialResults {
  float *highest, *sum, *values;

  PartialResults from(std::int64_t query, std::int64_t padded_dim) const {
    return {highest + query, sum + query, values + query * padded_dim};
  }
};

// What one thread works in; every array begins at a cache line.
struct Workspace {
  float* queries;           // [max_queries][padded_dim], rotated and scaled
  std::int32_t* positions;  // [max_queries]
  PartialResults state;     // of the queries, in the tiles so far
  float* keys;              // of a tile, [4 panels][head_dim][16 positions]
  float* values;            // of a tile, [64][padded_dim]
};

class AttentionStep {
 public:
  AttentionStep(AttentionShape shape, int num_threads);

  // Deal out a step; what is left of the step before is overwritten.
  void prepare(const Step& step);

  const std::vector<TileUnit>& tile_units() const { return tile_units_; }
  const std::vector<BlockUnit>& block_units() const { return block_units_; }  // longest first
  std::int64_t row_at(std::int32_t index) const { return order_.data()[index]; }
  std::int32_t num_split(std::int64_t row) const { return num_split_.data()[row]; }

  PartialResults partial_results(std::int64_t row, std::int32_t tile, int kv_head);
  Workspace workspace(int thread);

 private:
  std::int64_t num_queries(std::int64_t row) const;
  std::int32_t num_tiles(std::int64_t row) const;
  std::int64_t partials_len(std::int64_t row) const;
  std::int64_t work_left(std::int64_t row) const;

  void reset(const Step& step);
  void share_tiles(std::int32_t num_shareable);
  std::int32_t sort_by_slots(std::int32_t begin, std::int32_t end, std::int32_t tile);
  int compare_slots(std::int64_t a, std::int64_t b, std::int32_t tile) const;
  bool split(std::int32_t begin, std::int32_t end, std::int32_t tile);
  void split_long_rows();
  void cut_units();
  void divide_by_heads();
  void add_blocks();
  void add_block(std::int32_t row, std::int64_t begin, std::int64_t end, std::int64_t most);
  std::int64_t enough_units() const;

  const AttentionShape shape_;
  const std::int64_t num_threads_;
  const std::int64_t max_queries_;  // of a unit

  const Step* step_ = nullptr;  // until its last layer has run
  std::vector<std::int32_t> order_;           // rows that may be split, first those that may share
  std::vector<std::int32_t> num_split_;       // by row
  std::vector<std::int64_t> first_tile_;      // by row: its part of `partial_offsets_`
  std::vector<std::int64_t> partial_offsets_;  // by row and tile: its part of `partials_`
  std::vector<TileUnit> tile_units_, pending_;
  std::vector<BlockUnit> block_units_;

  std::int64_t partials_used_ = 0;
  std::vector<float> partials_, workspaces_;
  std::vector<std::int32_t> positions_;  // of the workspaces
};

}  // namespace espalier
