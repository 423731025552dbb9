// The keys by which lists are selected.
#ifndef KVEVICT_CORE_CPU_SELECT_H_
#define KVEVICT_CORE_CPU_SELECT_H_

#include <cstdint>

#include "core/backend.h"
#include "core/context.h"
#include "core/kernels/topk.h"

namespace kvevict::cpu {

inline Tie TieOf(const SelectArgs& args) {
  return args.tie == KVEVICT_TIE_LOWER_POSITION ? Tie::kLower : Tie::kHigher;
}

// Calls body(item, list), on the workers, for every list of every job.
template <typename Body>
void ForEachList(const Context& context, const SelectArgs& args,
                 const Body& body) {
  const uint32_t n_lists = args.jobs.front().keep.n_lists;
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * n_lists),
      [&](uint32_t item, uint32_t) { body(item / n_lists, item % n_lists); });
}

// Computes the keys of a list from the job's scores. Slots that must stay get
// the highest key, which no score has.
void MakeKeys(const Context& context, const SelectArgs& args,
              const SelectJob& job, uint32_t list);

// Ranks the keys of a list by the ranges of the call. n_best of them will be
// selected.
void RankKeys(const Context& context, const SelectArgs& args,
              const SelectJob& job, uint32_t list, uint32_t n_best);

// Computes all keys and, if they decide, what each list keeps. The keep lists
// are not written yet and serve as scratch.
void MakeKeysAndCount(const Context& context, const SelectArgs& args);

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_SELECT_H_
