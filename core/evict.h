// The main job: a whole model's cache scored, selected and compacted in place.
#ifndef KVEVICT_CORE_EVICT_H_
#define KVEVICT_CORE_EVICT_H_

#include <cstddef>

#include "core/sequence.h"
#include "core/status.h"

namespace kvevict {

// Views of all layers, as far apart as the caller's struct is wide.
class ViewList {
 public:
  ViewList(const kvevict_view* views, size_t n)
      : views_(reinterpret_cast<const uint8_t*>(views)),
        n_(n),
        stride_(n > 0 ? views->struct_size : 0) {}

  size_t size() const { return n_; }
  const kvevict_view& operator[](size_t i) const {
    return *reinterpret_cast<const kvevict_view*>(views_ + i * stride_);
  }

 private:
  const uint8_t* views_;
  size_t n_;
  size_t stride_;
};

// See kvevict_sequence_evict(). struct_size fields have been checked, and there
// is a view per layer. `report` is written on success.
Status Evict(Sequence* sequence, const ViewList& views,
             const kvevict_evict_options& options, void* workspace,
             size_t workspace_bytes, kvevict_evict_report* report);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_H_
