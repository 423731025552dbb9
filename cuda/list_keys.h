// The keys by which the lists of layers are selected, and what depends on the best of
// them.
#ifndef KVEVICT_CUDA_LIST_KEYS_H_
#define KVEVICT_CUDA_LIST_KEYS_H_

#include "core/backend.h"
#include "core/status.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"

namespace kvevict::cuda {

// Whether one launch can have both.
bool SelectTogether(const SelectJob& a, const SelectJob& b);

// Kernels that count, where scores decide how many a list keeps.
Status RequireCounting(const Context& context, Stream stream,
                       const SelectArgs& args);

// What kernels read of jobs that go together: scores, or keys, which are made where more
// than the ends must stay, slot by slot.
Status MakeKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, SelectParams* p);

// How kernels are told of jobs that go together, by their scores.
SelectParams ParamsFor(const SelectArgs& args, Jobs<SelectJob> jobs);

// The kernel that ranks, where ranges are given.
Status RequireRanking(const Context& context, Stream stream,
                      const SelectArgs& args);

// Ranks keys that were made, where ranges are given: of what a list keeps, or of a
// share of it, but at least n_least(job), the best.
struct RankShare {
  float share = -1.0f;  // all of it
  uint32_t (*n_least)(const BestArgs& args, const SelectJob& job) = nullptr;
  const BestArgs* args = nullptr;
};
Status RankKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, const SelectParams& p,
                const RankShare& share = {});

// Counts what each list keeps, to where selection reads it.
Status CountKept(const Context& context, Stream stream, const SelectArgs& args,
                 Jobs<SelectJob> jobs, const SelectParams& p);

// Launches a kernel of best_scores for all jobs; secures: once each list has been
// counted, where scores decide, and ranked.
Status ForBestOf(const Context& context, Stream stream, const BestArgs& args,
                 KernelId kernel, bool secures,
                 uint32_t (*n_best)(const BestArgs& args,
                                    const SelectJob& job));

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_LIST_KEYS_H_
