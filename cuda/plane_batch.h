// Planes with the same layout, of any layer, as the argument of one launch.
#ifndef KVEVICT_CUDA_PLANE_BATCH_H_
#define KVEVICT_CUDA_PLANE_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/status.h"
#include "core/view/view.h"
#include "cuda/kernels/gather_rows.h"

namespace kvevict::cuda {

struct PlaneBatch {
  GatherParams params{};
  uint32_t longest = 0;  // the longest keep list; 0: the batch is empty
  ListCounts counts;     // counts of the first plane's lists
  uint64_t n_bytes = 0;  // bytes of the rows that are kept
  bool in_place = true;  // false: to another cache

  // Adds a plane of the job and the one to which its rows go. Returns false,
  // and changes nothing, if their layout differs from that of the batch, if an
  // argument has no room for them, or if there would be too many bytes. An
  // empty batch accepts any plane.
  bool Add(const MoveJob& job, const kvevict_plane& plane,
           const kvevict_plane& to, uint64_t most_bytes);
};

// Calls run(PlaneBatch&) for all planes of the jobs that have kept rows.
template <typename Run>
Status ForEachPlaneBatch(Jobs<MoveJob> jobs, uint64_t most_bytes,
                         const Run& run) {
  PlaneBatch batch;
  const auto flush = [&] {
    const Status status = batch.longest > 0 ? run(batch) : Status();
    batch = {};
    return status;
  };
  uint32_t n_companions = 0;
  for (const MoveJob& job : jobs) {
    n_companions = std::max(n_companions, job.view->n_companions);
  }
  // Plane by plane over the layers, since the same plane has the same layout in
  // most.
  for (uint32_t i = 0; i < 2 + n_companions; ++i) {
    for (const MoveJob& job : jobs) {
      if (job.keep.count.most == 0) continue;
      if (i >= 2 && i - 2 >= job.view->n_companions) continue;
      if (i >= 2 && (job.shared_companions >> (i - 2) & 1) != 0) continue;
      if (i == 0 && job.change.k) continue;
      if (i == 1 && job.change.v) continue;
      const auto plane_at =
          [](const kvevict_view& view, uint32_t at) -> const auto& {
        return at == 0 ? view.k : at == 1 ? view.v : view.companions[at - 2];
      };
      const kvevict_plane& plane = plane_at(*job.view, i);
      if (!HasRows(*job.view, plane) || job.change.Covers(plane)) continue;
      const kvevict_plane& to = plane_at(
          job.target(),
          i < 2 ? i
                : 2 + PartnerOf(*job.view, job.target(), job.change, i - 2));
      if (batch.Add(job, plane, to, most_bytes)) continue;
      KV_RETURN_IF_ERROR(flush());
      batch.Add(job, plane, to, most_bytes);
    }
  }
  return flush();
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_PLANE_BATCH_H_
