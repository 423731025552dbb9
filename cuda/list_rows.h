// The rows of windows and reference queries, brought together for
// score_window.cc.
#ifndef KVEVICT_CUDA_LIST_ROWS_H_
#define KVEVICT_CUDA_LIST_ROWS_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

// Jobs of layers with the same layout, whose queries are the rows of both. These
// lie in scratch, and with them a ListedRow for each row and KV head.
class ListedJobs {
 public:
  static constexpr uint32_t kMaxLayers = 16;

  // The scratch for up to kMaxLayers of n_layers.
  static CheckedSize Bytes(const kvevict_layer_geometry& g,
                           const Policy& policy, uint32_t n_layers);

  ListedJobs(const ScoreArgs& args, Jobs<ScoreJob> jobs, uint64_t scratch);

  Jobs<ScoreJob> jobs() const {
    return std::span<const ScoreJob>(jobs_, given_.size());
  }
  // The ListedRow of the first job's first row.
  uint64_t list() const { return list_; }
  // How many of the last keys some row may not see.
  uint32_t n_masked() const;

  // Checks what Run() needs.
  Status Check(const Context& context, Stream stream) const;
  Status Run(const Context& context, Stream stream) const;

 private:
  const ScoreArgs& args_;
  const Jobs<ScoreJob> given_;
  const uint64_t rows_;
  const uint64_t list_;
  ScoreJob jobs_[kMaxLayers];
};

// Whether jobs that go together without reference queries do so with theirs.
bool ListTogether(const ScoreJob& a, const ScoreJob& b);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_LIST_ROWS_H_
