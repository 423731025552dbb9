// Arguments and scratch of contest.cu.
#ifndef KVEVICT_CUDA_KERNELS_CONTEST_H_
#define KVEVICT_CUDA_KERNELS_CONTEST_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct ContestLayer {
  SelectLayer select;
  uint32_t n_safe;      // the best of a list, which stay in any case
  uint32_t first_list;  // among those of all layers
};
static_assert(sizeof(ContestLayer) == 40);

// Scratch: a row of u32 for each list, then u64 [3, kBins].
//   row[b]           keys from bin b of the current digit on
//   row[n of bins]   keys above all bins
//   row[kContestSafe]
// The u64 are, for each digit, the keys of all lists that stay if those from a
// bin on do.
constexpr uint32_t kContestSafe = kBins + 1;
constexpr uint32_t kContestRow = kBins + 2;
constexpr uint32_t ContestBins(uint32_t round) {
  return round == 2 ? 1024 : kBins;
}

struct ContestParams {
  static constexpr uint32_t kMaxLayers = 96;
  SelectLists lists;   // of contest_digit; no list is written
  uint32_t input;      // SelectInput
  uint32_t round;      // the digit, 0 to 2
  uint64_t n_winners;  // at most the keys of all lists
  uint64_t rows;
  uint64_t totals;
  uint64_t winners;  // out: u32 [n_all_lists, 2]: count, ties
  uint32_t n_all_lists;
  uint32_t reserved;
  ContestLayer layers[kMaxLayers];
};
static_assert(sizeof(ContestParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CONTEST_H_
