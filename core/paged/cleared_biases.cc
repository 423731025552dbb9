#include "core/paged/cleared_biases.h"

#include <algorithm>

#include "core/context.h"
#include "core/view/view.h"

namespace kvevict {

ClearedBiases::ClearedBiases(const PagedCache& cache, Stream stream)
    : cache_(cache), stream_(stream), zeros_(KVEVICT_VIEW_INIT) {
  // The bits of slot number 0 are those of 0.0f.
  zeros_.k.data = reinterpret_cast<uintptr_t>(cache.slots());
  zeros_.k.dtype = KVEVICT_DTYPE_F32;
  zeros_.k.head_dim = 1;
}

// Whether a head's rows follow those of the last job: the next head's same slots.
bool ClearedBiases::Widens(const kvevict_view& view, uint64_t data,
                           uint32_t first, uint32_t n) const {
  if (n_jobs_ == 0) return false;
  const Job& last = jobs_[n_jobs_ - 1];
  const kvevict_plane& k = last.to.k;
  return last.to.block_table == view.block_table &&
         data == k.data + last.to.n_kv_heads *
                              static_cast<uint64_t>(k.head_stride_bytes) &&
         last.move.first_slot == first && last.move.keep.count.most == n;
}

Status ClearedBiases::Add(const kvevict_view& view, uint32_t head,
                          uint32_t first, uint32_t n) {
  const kvevict_plane* const biases = BiasesOf(view);
  if (biases == nullptr || head >= view.n_kv_heads || n == 0) return Status();
  const uint64_t data =
      biases->data + head * static_cast<uint64_t>(biases->head_stride_bytes);
  if (Widens(view, data, first, n)) {
    ++jobs_[n_jobs_ - 1].to.n_kv_heads;
    return Status();
  }
  if (n_jobs_ == kMostJobs) KV_RETURN_IF_ERROR(Run());
  Job& job = jobs_[n_jobs_++];
  job.to = view;
  job.to.n_kv_heads = 1;
  job.to.k = *biases;
  job.to.k.data = data;
  job.to.k.role = KVEVICT_ROLE_NONE;
  job.to.v = kvevict_plane{};
  job.to.n_companions = 0;
  job.move = MoveJob();
  job.move.destination = &job.to;
  job.move.tokens = n;
  job.move.keep = KeepLists::Packed(nullptr, 1, n);
  job.move.first_slot = first;
  return Status();
}

// Jobs of as many heads go together.
Status ClearedBiases::Run() {
  const Context& context = cache_.context();
  for (uint32_t i = 0; i < n_jobs_;) {
    zeros_.n_kv_heads = jobs_[i].to.n_kv_heads;
    uint32_t end = i;
    for (; end < n_jobs_ && jobs_[end].to.n_kv_heads == zeros_.n_kv_heads;
         ++end) {
      jobs_[end].move.view = &zeros_;
    }
    const Jobs<MoveJob> jobs(std::span<Job>(jobs_ + i, end - i), &Job::move);
    KV_RETURN_IF_ERROR(context.backend().compact(context, stream_, {jobs, {}}));
    i = end;
  }
  n_jobs_ = 0;
  return Status();
}

}  // namespace kvevict
