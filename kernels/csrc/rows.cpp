#include "rows.h"

namespace espalier {
namespace {

class Cursor {
 public:
  explicit Cursor(std::uint8_t* memory) : memory_(memory) {}

  template <class T>
  T* take(std::int64_t count) {
    T* place = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    return place;
  }
  std::int64_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::int64_t used_ = 0;
};

}  // namespace

PreparedRows place_rows(const LinearOp& op, std::int64_t num_rows, std::uint8_t* memory) {
  const std::int64_t groups = op.matrices[0].num_groups();
  bool need_i16 = false, need_i8 = false, need_f32 = false;
  for (const Matrix& matrix : op.matrices) {
    need_i16 |= multiplies_i16(op, matrix);
    need_i8 |= multiplies_i8(op, matrix);
    need_f32 |= !multiplies_i16(op, matrix) && !multiplies_i8(op, matrix);
  }
  Cursor cursor(memory);
  PreparedRows rows;
  rows.num_rows = num_rows;
  if (need_f32 && op.norm != nullptr) rows.f32 = cursor.take<float>(num_rows * op.num_inputs());
  if (need_i16) {
    rows.i16 = cursor.take<std::int16_t>(num_rows * groups * group_len);
    rows.scale16 = cursor.take<float>(num_rows);
  }
  if (need_i8) {
    rows.i8 = cursor.take<std::int8_t>(num_rows * groups * group_len);
    rows.scale8 = cursor.take<float>(num_rows * groups);
    rows.sum8 = cursor.take<float>(num_rows * groups);
  }
  rows.nbytes = cursor.used();
  return rows;
}

}  // namespace espalier
