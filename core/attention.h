// Arguments of the operation that computes attention of queries over caches.
#ifndef KVEVICT_CORE_ATTENTION_H_
#define KVEVICT_CORE_ATTENTION_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/jobs.h"
#include "core/view/view.h"
#include "kvevict/kvevict.h"

namespace kvevict {

// One layer of one sequence; see kvevict_attention_job. Absent planes are 0.
struct AttendJob {
  kvevict_view view;
  ListCounts tokens;  // per KV head
  kvevict_plane queries;
  kvevict_plane out;
  kvevict_plane row_lse;
  kvevict_plane attention_sums;
  const float* sink_logits;
  uint32_t n_q_heads;
  uint32_t n_queries;
  uint32_t v_head_dim;
  uint32_t window;
  uint32_t non_causal;
  uint32_t n_sum_heads;
  float softmax_scale;
  float logit_softcap;

  uint32_t group() const { return n_q_heads / view.n_kv_heads; }
  // The plane with the values. Without V they are in the keys' rows.
  const kvevict_plane& values() const {
    return IsPresent(view.v) ? view.v : view.k;
  }
};

struct AttendArgs {
  using Size = Jobs<AttendJob>;  // only shapes and strides are read

  Jobs<AttendJob> jobs;
  std::span<uint8_t> scratch;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_ATTENTION_H_
