// Takes evictions of a random model back on both sides, which hold the same before
// and after.
#ifndef KVEVICT_TESTS_GPU_RANDOM_UNDO_H_
#define KVEVICT_TESTS_GPU_RANDOM_UNDO_H_

#include <memory>
#include <vector>

#include "tests/gpu/random_model.h"
#include "tests/gpu/report.h"

namespace kvevict::gpu {

// Compares rows in use and their positions.
void ExpectAlike(const RandomModel& model, Report* report);

// Undo memory of an eviction on both sides. Sometimes there is none, and none if an
// undo is impossible.
struct UndoMemory {
  std::unique_ptr<Buffer> device;
  std::unique_ptr<HostWorkspace> host;

  UndoMemory(const Gpu& gpu, Random* random, const RandomModel& model,
             const std::vector<kvevict_view>& views,
             const std::vector<kvevict_view>& host_views, Report* report);
  void Lend(kvevict_evict_options* on_device,
            kvevict_evict_options* on_host) const;
};

// Takes back what both sides have done.
void UndoBoth(const UndoMemory& undo, RandomModel* model,
              const std::vector<kvevict_view>& views,
              const std::vector<kvevict_view>& host_views, Report* report);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_UNDO_H_
