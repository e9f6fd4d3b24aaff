#include "attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace espalier {
namespace {

// Queries of a block, which divide the cost of reading and packing a tile between them. More
// would outgrow the cache.
constexpr std::int64_t max_block = 96;
// A row with fewer queries than this gains from a tile that is packed for other rows too.
// Blocks are made no smaller, either.
constexpr std::int64_t min_block = 24;
// What packing a tile costs, in queries attending to it.
constexpr std::int64_t packing_cost = 4;
// Pieces that each thread should find at least, so that none waits long for the last one.
constexpr std::int64_t pieces_per_thread = 4;
// Rows that are not split for lack of room are computed as blocks alone.
constexpr std::int64_t max_partials = (std::int64_t{64} << 20) / sizeof(float);

constexpr std::int64_t line = 64 / sizeof(float);

std::int64_t whole_lines(std::int64_t len) { return (len + line - 1) / line * line; }

std::int64_t workspace_len(const AttentionShape& shape, std::int64_t max_queries) {
  return 2 * max_queries * shape.padded_dim() + 2 * whole_lines(max_queries + line) +
         2 * tile_len * shape.padded_dim();
}

}  // namespace

AttentionStep::AttentionStep(AttentionShape shape, int num_threads)
    : shape_(shape),
      num_threads_(num_threads),
      max_queries_(std::max<std::int64_t>(max_block, shape.group())),
      workspaces_(
          static_cast<std::size_t>(num_threads * workspace_len(shape, max_queries_) + line)),
      positions_(static_cast<std::size_t>(num_threads * max_queries_)) {}

void AttentionStep::prepare(const Step& step) {
  reset(step);
  for (std::int32_t row = 0; row < step.num_rows; row++)
    if (num_queries(row) <= max_queries_) order_.push_back(row);
  const std::int64_t few = std::max<std::int64_t>(min_block, shape_.group());
  const auto shareable = std::partition(
      order_.begin(), order_.end(), [&](std::int32_t row) { return num_queries(row) <= few; });
  share_tiles(static_cast<std::int32_t>(shareable - order_.begin()));
  if (num_threads_ > 1) split_long_rows();
  cut_units();
  divide_by_heads();
  add_blocks();
  if (partials_.size() < static_cast<std::size_t>(partials_used_))
    partials_.resize(static_cast<std::size_t>(partials_used_));
}

void AttentionStep::reset(const Step& step) {
  step_ = &step;
  order_.clear();
  tile_units_.clear();
  block_units_.clear();
  num_split_.assign(static_cast<std::size_t>(step.num_rows), 0);
  first_tile_.clear();
  std::int64_t num_tiles_in_all = 0;
  for (std::int64_t row = 0; row < step.num_rows; row++) {
    first_tile_.push_back(num_tiles_in_all);
    num_tiles_in_all += num_tiles(row);
  }
  partial_offsets_.resize(static_cast<std::size_t>(num_tiles_in_all));
  partials_used_ = 0;
}

std::int64_t AttentionStep::num_queries(std::int64_t row) const {
  return std::int64_t{step_->length.data()[row]} * shape_.group();
}

std::int32_t AttentionStep::num_tiles(std::int64_t row) const {
  return (step_->start.data()[row] + step_->length.data()[row] + tile_len - 1) / tile_len;
}

// Of one tile.
std::int64_t AttentionStep::partials_len(std::int64_t row) const {
  return shape_.num_kv_heads * num_queries(row) * (shape_.padded_dim() + 2);
}

// Of one KV head, in (query, tile) pairs.
std::int64_t AttentionStep::work_left(std::int64_t row) const {
  const std::int64_t queries = num_queries(row);
  const std::int64_t packed = (queries + max_block - 1) / max_block * packing_cost;
  return (queries + packed) * (num_tiles(row) - num_split(row));
}

// Follow the rows' slots tile by tile for as long as several rows have the same.
void AttentionStep::share_tiles(std::int32_t num_shareable) {
  pending_.assign(1, TileUnit{0, 0, num_shareable, {}});
  while (!pending_.empty()) {
    const TileUnit all = pending_.back();
    pending_.pop_back();
    const std::int32_t end = sort_by_slots(all.begin, all.end, all.tile);
    for (std::int32_t first = all.begin, next; first < end; first = next) {
      next = first + 1;
      while (next < end && compare_slots(row_at(first), row_at(next), all.tile) == 0) next++;
      if (next - first > 1 && split(first, next, all.tile))
        pending_.push_back({all.tile + 1, first, next, {}});
    }
  }
}

// Bring rows with the same slots in a tile together, and those that do not fill it to the end:
// returns where these begin.
std::int32_t AttentionStep::sort_by_slots(std::int32_t begin, std::int32_t end, std::int32_t tile) {
  const auto first = order_.begin() + begin;
  const std::int32_t tile_end = (tile + 1) * tile_len;
  const auto full = std::partition(first, order_.begin() + end, [&](std::int32_t row) {
    return step_->start.data()[row] + step_->length.data()[row] >= tile_end;
  });
  const auto is_like_first = [&](std::int32_t row) {
    return compare_slots(*first, row, tile) == 0;
  };
  if (!std::all_of(first, full, is_like_first))
    std::sort(first, full, [&](std::int32_t a, std::int32_t b) {
      return compare_slots(a, b, tile) < 0;
    });
  return static_cast<std::int32_t>(full - order_.begin());
}

// 0 if both rows keep a tile that they fill in the same slots, else how to order them.
int AttentionStep::compare_slots(std::int64_t a, std::int64_t b, std::int32_t tile) const {
  const std::int32_t begin = tile * tile_len;
  return std::memcmp(step_->slots_of(a) + begin, step_->slots_of(b) + begin,
                     tile_len * sizeof(std::int32_t));
}

// Leave `tile` of these rows to phase 1, if there is room for its results.
bool AttentionStep::split(std::int32_t begin, std::int32_t end, std::int32_t tile) {
  std::int64_t needed = 0;
  for (std::int32_t i = begin; i < end; i++) needed += partials_len(row_at(i));
  if (partials_used_ + needed > max_partials) return false;
  tile_units_.push_back({tile, begin, end, {0, shape_.num_kv_heads}});
  for (std::int32_t i = begin; i < end; i++) {
    const std::int64_t row = row_at(i);
    partial_offsets_.data()[first_tile_.data()[row] + tile] = partials_used_;
    partials_used_ += partials_len(row);
    num_split_.data()[row] = tile + 1;
  }
  return true;
}

// A row that would keep one thread busy for long is better divided by tiles.
void AttentionStep::split_long_rows() {
  std::int64_t work = 0;
  for (const TileUnit& unit : tile_units_)
    for (std::int32_t i = unit.begin; i < unit.end; i++) work += num_queries(row_at(i));
  for (std::int64_t row = 0; row < step_->num_rows; row++) work += work_left(row);
  const std::int64_t share = work * shape_.num_kv_heads / (num_threads_ * pieces_per_thread);
  const auto num_rows = static_cast<std::int32_t>(order_.size());
  for (std::int32_t i = 0; i < num_rows; i++) {
    const std::int64_t row = row_at(i);
    const std::int32_t tiles = num_tiles(row);
    if (work_left(row) <= share || tiles - num_split(row) < 2) continue;
    for (std::int32_t tile = num_split(row); tile < tiles; tile++)
      if (!split(i, i + 1, tile)) break;
  }
}

// Make units of `max_queries_` queries at most. Not earlier: rows that share a tile are brought
// into another order for the next one.
void AttentionStep::cut_units() {
  pending_.swap(tile_units_);
  tile_units_.clear();
  for (const TileUnit& whole : pending_) {
    std::int64_t queries = max_queries_;
    for (std::int32_t i = whole.begin; i < whole.end; i++) {
      queries += num_queries(row_at(i));
      if (queries > max_queries_) {
        tile_units_.push_back({whole.tile, i, i, whole.heads});
        queries = num_queries(row_at(i));
      }
      tile_units_.back().end = i + 1;
    }
  }
}

// Enough for none to wait long for the last one.
std::int64_t AttentionStep::enough_units() const {
  return num_threads_ > 1 ? num_threads_ * pieces_per_thread : 1;
}

void AttentionStep::divide_by_heads() {
  const std::size_t count = tile_units_.size();
  if (static_cast<std::int64_t>(count) >= enough_units()) return;
  for (std::int32_t head = 1; head < shape_.num_kv_heads; head++)
    for (std::size_t i = 0; i < count; i++) {
      tile_units_.push_back(tile_units_[i]);
      tile_units_.back().heads = {head, head + 1};
    }
  for (std::size_t i = 0; i < count; i++) tile_units_[i].heads = {0, 1};
}

void AttentionStep::add_blocks() {
  const std::int64_t fair = step_->num_tokens * shape_.num_heads / enough_units();
  const std::int64_t block = std::clamp(fair / 6 * 6, min_block, max_block);
  std::int64_t num_blocks = 0;  // of each head
  for (std::int64_t row = 0; row < step_->num_rows; row++)
    num_blocks += (num_queries(row) + block - 1) / block;
  const std::int64_t most = num_blocks >= enough_units() ? max_queries_ : 0;
  for (std::int32_t row = 0; row < step_->num_rows; row++) {
    const std::int64_t queries = num_queries(row);
    for (std::int64_t begin = 0; begin < queries; begin += block)
      add_block(row, begin, std::min(begin + block, queries), most);
  }
  std::sort(block_units_.begin(), block_units_.end(),
            [](const BlockUnit& a, const BlockUnit& b) { return a.cost > b.cost; });
}

// Queries [begin, end) of every head; several heads together while that is `most` at most.
void AttentionStep::add_block(std::int32_t row, std::int64_t begin, std::int64_t end,
                              std::int64_t most) {
  const std::int64_t last = step_->start.data()[row] + (end - 1) / shape_.group();
  const std::int64_t cost = (end - begin + packing_cost) * (last / tile_len + 1 - num_split(row));
  const std::int32_t together = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(most / (end - begin), 1, shape_.num_kv_heads));
  for (std::int32_t head = 0; head < shape_.num_kv_heads; head += together) {
    const Heads heads = {head, std::min(head + together, shape_.num_kv_heads)};
    block_units_.push_back({row, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                            heads, cost * heads.count()});
  }
}

PartialResults AttentionStep::partial_results(std::int64_t row, std::int32_t tile, int kv_head) {
  const std::int64_t queries = num_queries(row);
  float* highest = partials_.data() + partial_offsets_.data()[first_tile_.data()[row] + tile] +
                   kv_head * queries * (shape_.padded_dim() + 2);
  return {highest, highest + queries, highest + 2 * queries};
}

Workspace AttentionStep::workspace(int thread) {
  const std::int64_t dim = shape_.padded_dim(), scalars = whole_lines(max_queries_ + line);
  const auto address = reinterpret_cast<std::uintptr_t>(workspaces_.data());
  float* next = workspaces_.data() + (-address & 63) / sizeof(float) +
                thread * workspace_len(shape_, max_queries_);
  const auto take = [&](std::int64_t len) { return std::exchange(next, next + len); };
  Workspace out;
  out.queries = take(max_queries_ * dim);
  out.positions = positions_.data() + thread * max_queries_;
  out.state.highest = take(scalars);
  out.state.sum = take(scalars);
  out.state.values = take(max_queries_ * dim);
  out.keys = take(tile_len * dim);
  out.values = take(tile_len * dim);
  return out;
}

}  // namespace espalier
