// The last query rows of one layer and sequence, in the order of their tokens.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_QUERY_ROWS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_QUERY_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kvevict::llama {

// Keeps at least the last `capacity` rows, all of consecutive positions.
class QueryRows {
 public:
  // Makes room for the row of `position`. Rows of this and of later positions
  // are forgotten; if it does not follow the last row, all are.
  float* Append(uint32_t position, uint32_t capacity, size_t row_floats) {
    if (rows_.empty()) rows_.resize(2 * size_t{capacity} * row_floats);
    row_floats_ = row_floats;
    TakeBack(position);
    if (position != next_) n_ = 0;
    if (n_ == 2 * capacity) {
      n_ = capacity - 1;
      std::memmove(rows_.data(), rows_.data() + (capacity + 1) * row_floats,
                   n_ * row_floats * sizeof(float));
    }
    next_ = position + 1;
    return rows_.data() + n_++ * row_floats;
  }

  // Forgets the rows from `position` on.
  void TakeBack(uint32_t position) {
    if (position >= next_) return;
    n_ -= std::min(n_, size_t{next_ - position});
    next_ = position;
  }

  // The number of rows that end right before `position`.
  size_t n_before(uint32_t position) const {
    return position == next_ ? n_ : 0;
  }
  // The last n of n_before().
  const float* Last(size_t n) const {
    return rows_.data() + (n_ - n) * row_floats_;
  }

 private:
  std::vector<float> rows_;
  size_t row_floats_ = 0;
  size_t n_ = 0;
  uint32_t next_ = 0;  // position after the last row
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_QUERY_ROWS_H_
