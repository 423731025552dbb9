// Launches row_norms: once for layers with the same layout.
#ifndef KVEVICT_CUDA_ROW_NORMS_H_
#define KVEVICT_CUDA_ROW_NORMS_H_

#include "core/backend.h"
#include "core/view/view.h"
#include "cuda/kernels/row_norm.h"
#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

// Computes norms, or spreads, of a plane of the jobs' views and writes them to
// `scores` of the jobs. The rest of p says how norms are used.
template <typename Job>
Status LaunchRowNorms(const Context& context, Stream stream, Jobs<Job> jobs,
                      kvevict_plane kvevict_view::*plane, float* Job::*scores,
                      RowNormParams p, KernelId kernel = KernelId::row_norms) {
  const auto go_together = [&](const Job& one, const Job& other) {
    const auto &a = Scored(one), &b = Scored(other);
    return ReadAlike(*a.view, a.view->*plane, *b.view, b.view->*plane) &&
           InOneTable(a.tokens, b.tokens);
  };
  const auto run = [&](Jobs<Job> batch) {
    const auto& first = Scored(batch.front());
    const kvevict_view& view = *first.view;
    const Counts tokens(first.tokens);
    p.rows = RowsOf(view, view.*plane);
    p.tokens = tokens.table();
    p.n_kv_heads = view.n_kv_heads;
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto& job = Scored(batch[i]);
      p.layers[i] = {BaseOf(job.view->*plane), AddressOf(job.view->block_table),
                     AddressOf(batch[i].*scores), job.tokens.most,
                     tokens.FirstOf(job.tokens)};
    }
    return Launch(context, stream,
                  ReaderOf(context, ModuleId::row_norm, KindsOf(p.rows)),
                  kernel,
                  {BlocksFor(LongestOf(batch), NormBlockRows(p.rows.lanes)),
                   p.n_kv_heads, Size(batch), kNormThreads},
                  p);
  };
  return ForEachBatch(jobs, RowNormParams::kMaxLayers, go_together, run);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_ROW_NORMS_H_
