// Counts what lists of all layers keep if they compete. A work item is a list.
#include <algorithm>
#include <array>

#include "core/cpu/cpu.h"
#include "core/cpu/select.h"
#include "core/kernels/topk.h"

namespace kvevict::cpu {
namespace {

// The state of one list while the cut is found, digit by digit.
struct ContestList {
  const uint32_t* keys;
  uint32_t n_tokens;
  uint32_t n_safe;             // its best, which stay in any case
  uint32_t n_above;            // keys whose higher digits exceed the cut's
  uint32_t bins[kMaxKeyBins];  // keys with those digits, per next digit
};

ScratchNeeds ScratchBytes(const Context&, const CountWinnersArgs::Size& size) {
  return CheckedSize(size.n_lists) * CheckedSize(sizeof(ContestList));
}

// Computes the keys of all lists and describes them.
std::span<ContestList> Begin(const Context& context,
                             const CountWinnersArgs& args) {
  auto* const first = reinterpret_cast<ContestList*>(args.scratch.data());
  const SelectArgs& select = args.select;
  size_t n = 0;
  for (const SelectJob& job : select.jobs) {
    const uint32_t n_safe = args.SafeOf(job);
    context.ParallelFor(job.keep.n_lists, [&](uint32_t list, uint32_t) {
      MakeKeys(context, select, job, list);
      ContestList& to = first[n + list];
      to.keys = job.keys + uint64_t{list} * job.tokens.most;
      to.n_tokens = job.tokens.Of(list);
      to.n_safe = std::min(n_safe, to.n_tokens);
      to.n_above = 0;
    });
    n += job.keep.n_lists;
  }
  return {first, n};
}

// The largest digit from which on enough keys stay. Those that exceed it are
// added to n_above.
uint32_t FindDigit(std::span<ContestList> lists, uint32_t n_bins,
                   uint64_t n_winners) {
  std::array<uint64_t, kMaxKeyBins> kept{};
  for (const ContestList& list : lists) {
    uint32_t n = list.n_above;
    for (uint32_t b = n_bins; b-- > 0;) {
      n += list.bins[b];
      kept[b] += std::max(n, list.n_safe);
    }
  }
  uint32_t digit = n_bins - 1;
  while (kept[digit] < n_winners) --digit;
  for (ContestList& list : lists) {
    for (uint32_t b = digit + 1; b < n_bins; ++b) list.n_above += list.bins[b];
  }
  return digit;
}

Status RunCountWinners(const Context& context, Stream,
                       const CountWinnersArgs& args) {
  const std::span<ContestList> lists = Begin(context, args);
  uint32_t cut = 0;
  uint32_t digit = 0;
  for (const KeyDigit& of_key : kKeyDigits) {
    context.ParallelFor(static_cast<uint32_t>(lists.size()),
                        [&](uint32_t i, uint32_t) {
                          ContestList& list = lists[i];
                          CountKeyDigit(context.simd(), list.keys,
                                        list.n_tokens, of_key, cut, list.bins);
                        });
    digit = FindDigit(lists, 1u << of_key.n_bits, args.n_winners);
    cut = (cut << of_key.n_bits) + digit;
  }
  for (size_t i = 0; i < lists.size(); ++i) {
    const ContestList& list = lists[i];
    const uint32_t count = std::max(list.n_above, list.n_safe);
    const uint32_t n_from = list.n_above + list.bins[digit];
    args.winners[i] = {count, std::max(n_from, count) - count};
  }
  return Status();
}

}  // namespace

const Op<CountWinnersArgs> kOp_count_winners = {RunCountWinners, ScratchBytes};

}  // namespace kvevict::cpu
