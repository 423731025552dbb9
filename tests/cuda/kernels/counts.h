// Lists with counts of their own, as launches take them, and their scores.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_COUNTS_H_
#define KVEVICT_TESTS_CUDA_KERNELS_COUNTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/kernels/params.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {

// Counts of the lists of layers in one table with gaps between them, or no
// table: all have the most.
class ListTable {
 public:
  ListTable(uint32_t n_lists, bool has_table, uint32_t step)
      : n_lists_(n_lists), step_(step), has_table_(has_table) {}

  // Adds a layer whose lists have from `least` to `most`, one of them the most.
  void AddLayer(uint32_t least, uint32_t most, Random& random) {
    const uint32_t longest = random.Below(n_lists_);
    for (uint32_t list = 0; list < n_lists_; ++list) {
      const bool is_short = has_table_ && list != longest;
      AddList(is_short ? least + random.Below(most - least + 1) : most);
    }
  }
  void AddList(uint32_t count) {
    values_.push_back(count);
    for (uint32_t i = 1; i < step_; ++i) values_.push_back(0xDEAD);
  }

  uint32_t Of(size_t layer, uint32_t list) const {
    return values_[(layer * n_lists_ + list) * step_];
  }
  uint32_t n_layers() const {
    return static_cast<uint32_t>(values_.size()) / step_ / n_lists_;
  }
  // Of any list of a layer, the most.
  uint32_t Most(size_t layer) const {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_lists_; ++i) most = std::max(most, Of(layer, i));
    return most;
  }
  // Tables begin at their first layer. Here it is the last one, so that others
  // come before it.
  cuda::CountTable table() const {
    if (!has_table_) return {};
    return {Address(&values_[size_t{n_layers() - 1} * n_lists_ * step_]), step_,
            0};
  }
  int32_t FirstOf(size_t layer) const {
    return (static_cast<int32_t>(layer) - static_cast<int32_t>(n_layers()) +
            1) *
           static_cast<int32_t>(n_lists_ * step_);
  }

 private:
  const uint32_t n_lists_;
  const uint32_t step_;
  const bool has_table_;
  std::vector<uint32_t> values_;
};

// Any numbers, a few, equal ones, rare ones, or ones that differ in the last digits.
enum ScoreKind : uint32_t { kAny, kFew, kEqual, kRare, kClose, kScoreKinds };

inline float DrawRare(Random& random) {
  constexpr float kSpecials[] = {kNan, -kNan, kInfinity, -kInfinity,
                                 0.0f, -0.0f, 1e-44f,    -1e-44f};
  return kSpecials[random.Below(8)];
}

inline float DrawScore(uint32_t kind, Random& random) {
  switch (kind) {
    case kAny:
      return random.Gaussian();
    case kFew:
      return static_cast<float>(random.Below(4));
    case kEqual:
      return -0.5f;
    case kRare:
      return DrawRare(random);
    default:
      return std::bit_cast<float>(0x3F800000u + random.Below(700));
  }
}

inline std::vector<float> DrawScores(size_t n, uint32_t kind, Random& random) {
  std::vector<float> scores(n);
  for (float& score : scores) score = DrawScore(kind, random);
  return scores;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_COUNTS_H_
