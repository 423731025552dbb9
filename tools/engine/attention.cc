#include "tools/engine/attention.h"

#include "kvevict/attention.h"
#include "tools/engine/kvevict_error.h"

namespace kvevict::tools {
namespace {

// f32 [n_rows, n_heads, head_dim], packed.
kvevict_plane Rows(const float* rows, uint32_t n_heads, uint32_t head_dim) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(rows);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  plane.head_stride_bytes = int64_t{head_dim} * sizeof(float);
  plane.token_stride_bytes = plane.head_stride_bytes * n_heads;
  return plane;
}

}  // namespace

Attention::Attention(ThreadPool& pool, const char* simd_target)
    : context_(CreateContext(pool, simd_target)) {}

void Attention::Attend(const Args& args) {
  const KvCache& cache = *args.cache;
  const KvShape& shape = cache.shape();
  const kvevict_view view = cache.View(args.layer);
  const kvevict_plane queries =
      Rows(args.queries, args.n_q_heads, shape.k_head_dim);
  const kvevict_plane out = Rows(args.out, args.n_q_heads, shape.v_head_dim);
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  job.n_tokens = cache.length(args.layer);
  if (cache.is_ragged(args.layer)) {
    job.token_counts = cache.lengths(args.layer).data();
  }
  job.view = &view;
  job.queries = &queries;
  job.out = &out;
  job.n_q_heads = args.n_q_heads;
  job.n_queries = args.n_queries;
  job.softmax_scale = args.scale;

  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_attend_workspace(context_.get(), &job, 1, &size));
  workspace_.Fit(size);
  Check(kvevict_attend(context_.get(), &job, 1, workspace_.data(),
                       workspace_.size(), nullptr));
}

}  // namespace kvevict::tools
