// Counts what lists of all layers keep if they compete, with the results of
// core/cpu/count_winners.cc. The cut is found digit by digit: contest_digit and
// contest_totals run three times, then contest_count.
#include "contest.h"

#include "device.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint64_t RowOfList(const ContestParams& p, uint32_t list) {
  return p.rows + uint64_t{list} * kContestRow * sizeof(uint32_t);
}

KV_DEVICE uint32_t LoadWord(uint64_t row, uint32_t i) {
  return LoadGlobal<uint32_t>(row + uint64_t{i} * sizeof(uint32_t));
}

KV_DEVICE void StoreWord(uint64_t row, uint32_t i, uint32_t v) {
  StoreGlobal(row + uint64_t{i} * sizeof(uint32_t), v);
}

KV_DEVICE uint64_t TotalPlace(const ContestParams& p, uint32_t round,
                              uint32_t bin) {
  return p.totals + (uint64_t{round} * kBins + bin) * sizeof(uint64_t);
}

// The cut's digit of a round whose totals are known: the largest from which on
// enough keys stay. Totals fall from bin to bin. For all threads, which meet at
// a barrier before they call it again.
KV_DEVICE uint32_t CutDigit(const ContestParams& p, uint32_t round,
                            uint32_t* counter) {
  if (threadIdx.x == 0) *counter = 0;
  BlockSync();
  uint32_t n = 0;
  for (uint32_t b = threadIdx.x; b < ContestBins(round); b += kSelectThreads) {
    n += LoadGlobal<uint64_t>(TotalPlace(p, round, b)) >= p.n_winners;
  }
  AtomicAddShared(counter, n);
  BlockSync();
  return *counter - 1;
}

}  // namespace

// Counts the keys of a list from each value of the digit on. Grid (n_lists,
// n_layers); a block has one list. 8.4 KiB shared. Reads the scores once.
KV_KERNEL(contest_digit, ContestParams, kSelectThreads, 4) {
  KV_SHARED(SelectShared, shared, 1);
  KV_SHARED(uint32_t, counter, 1);
  const ContestLayer& layer = p.layers[blockIdx.y];
  const Keys keys(p, layer.select, blockIdx.x);
  const uint64_t row = RowOfList(p, layer.first_list + blockIdx.x);
  Cut cut = {0, 0, 0};
  uint32_t digit = 0;
  for (uint32_t round = 0; round < p.round; ++round) {
    if (round > 0) BlockSync();
    digit = CutDigit(p, round, counter);
    cut.low += digit << DigitShift(round);
  }
  const uint32_t n_above = p.round == 0 ? 0 : LoadWord(row, digit + 1);
  ZeroBins(*shared);
  BlockSync();
  CountDigits(keys, 0, keys.Size(), p.round, cut, *shared);
  BlockSync();
  const uint32_t first = FirstBin();
  uint32_t bins[kBinsPerThread];
  uint32_t own = 0;
#pragma unroll
  for (uint32_t j = 0; j < kBinsPerThread; ++j) {
    bins[j] = shared->bins[first + j];
    own += bins[j];
  }
  uint32_t n = n_above + CountAbove(own, *shared);
  const uint32_t n_bins = ContestBins(p.round);
#pragma unroll
  for (uint32_t j = kBinsPerThread; j-- > 0;) {
    n += bins[j];
    if (first + j < n_bins) StoreWord(row, first + j, n);
  }
  if (threadIdx.x != 0) return;
  StoreWord(row, n_bins, n_above);
  StoreWord(row, kContestSafe,
            layer.n_safe < keys.words.n ? layer.n_safe : keys.words.n);
}

// Adds up the keys of all lists that stay if those from a bin on do. Grid (bins
// / 256). A thread has one bin. Reads 4 bytes per list and bin.
KV_KERNEL(contest_totals, ContestParams, kSelectThreads, 4) {
  const uint32_t bin = blockIdx.x * kSelectThreads + threadIdx.x;
  if (bin >= ContestBins(p.round)) return;
  uint64_t total = 0;
  for (uint32_t list = 0; list < p.n_all_lists; ++list) {
    const uint64_t row = RowOfList(p, list);
    const uint32_t n = LoadWord(row, bin);
    const uint32_t n_safe = LoadWord(row, kContestSafe);
    total += n > n_safe ? n : n_safe;
  }
  StoreGlobal(TotalPlace(p, p.round, bin), total);
}

// Writes what each list keeps, and its ties. Grid (lists / 256). A thread has
// one list.
KV_KERNEL(contest_count, ContestParams, kSelectThreads, 4) {
  KV_SHARED(uint32_t, counter, 1);
  const uint32_t digit = CutDigit(p, 2, counter);
  const uint32_t list = blockIdx.x * kSelectThreads + threadIdx.x;
  if (list >= p.n_all_lists) return;
  const uint64_t row = RowOfList(p, list);
  const uint32_t n_greater = LoadWord(row, digit + 1);
  const uint32_t n_from = LoadWord(row, digit);
  const uint32_t n_safe = LoadWord(row, kContestSafe);
  const uint32_t count = n_greater > n_safe ? n_greater : n_safe;
  const uint64_t winners = p.winners + uint64_t{list} * 8;
  StoreGlobal(winners, count);
  StoreGlobal(winners + 4, n_from > count ? n_from - count : 0);
}

}  // namespace kvevict::cuda
