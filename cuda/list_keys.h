// The keys by which lists are selected, and what depends on the best of them.
#ifndef KVEVICT_CUDA_LIST_KEYS_H_
#define KVEVICT_CUDA_LIST_KEYS_H_

#include "core/backend.h"
#include "core/status.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"

namespace kvevict::cuda {

// Whether one launch can take both.
bool SelectTogether(const SelectJob& a, const SelectJob& b);

// Finds the kernels that count how many a list keeps, if scores decide.
Status RequireCounting(const Context& context, Stream stream,
                       const SelectArgs& args);

// Whether keys are computed: if more than the ends must stay, slot by slot, or
// slots are ranked.
bool MakesKeys(const SelectArgs& args);

// Makes kernels read the keys that MakeKeys() has computed before.
void ReadKeys(Jobs<SelectJob> jobs, SelectParams* p);

// Sets what kernels read of jobs in one launch: scores, or keys, which
// are computed if MakesKeys().
Status MakeKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, SelectParams* p);

// The parameters of jobs in one launch, with their scores.
SelectParams ParamsFor(const SelectArgs& args, Jobs<SelectJob> jobs);

// Finds the kernel that ranks, if ranges are given.
Status RequireRanking(const Context& context, Stream stream,
                      const SelectArgs& args);

// Ranks keys that were computed, if ranges are given. The best are all that a
// list keeps or a share of it, but at least n_least(job).
struct RankShare {
  float share = -1.0f;  // negative: all that it keeps
  uint32_t (*n_least)(const BestArgs& args, const SelectJob& job) = nullptr;
  const BestArgs* args = nullptr;
};
Status RankKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, const SelectParams& p,
                const RankShare& share = {});

// Counts what each list keeps, and writes it where selection reads it.
Status CountKept(const Context& context, Stream stream, const SelectArgs& args,
                 Jobs<SelectJob> jobs, const SelectParams& p);

// Launches a kernel of best_scores for all jobs. With `secures` each list is
// counted before, if scores decide, and ranked.
Status ForBestOf(const Context& context, Stream stream, const BestArgs& args,
                 KernelId kernel, bool secures,
                 uint32_t (*n_best)(const BestArgs& args,
                                    const SelectJob& job));

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_LIST_KEYS_H_
