#include "cuda/window_jobs.h"

#include <algorithm>

#include "core/dtype.h"
#include "cuda/alignment.h"
#include "cuda/launch.h"
#include "cuda/list_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool IsMultipleOf(uint64_t unit, std::initializer_list<uint64_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [unit](uint64_t v) { return v % unit == 0; });
}

}  // namespace

Status CheckJobAligned(const ScoreJob& job, const kvevict_layer_geometry& g) {
  KV_RETURN_IF_ERROR(CheckKeysAligned(*job.view));
  KV_RETURN_IF_ERROR(CheckBiasesAligned(*job.view));
  KV_RETURN_IF_ERROR(CheckAligned(
      "queries", AddressOf(job.queries.rows.base),
      {job.queries.rows.row_stride, job.queries.rows.element_stride,
       g.n_q_heads > 1 ? job.queries.head_stride : 0},
      ElementBytes(job.queries.rows.dtype)));
  if (job.queries.lse == nullptr) return Status();
  return CheckAligned("row_lse", AddressOf(job.queries.lse),
                      {job.queries.lse_row_stride,
                       g.n_q_heads > 1 ? job.queries.lse_head_stride : 0},
                      sizeof(float));
}

bool LayoutAllowsMma(const ScoreJob& job) {
  const CacheRows rows = RowsOf(*job.view, job.view->k);
  const RowLayout& keys = rows.layout;
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const int64_t element = ElementBytes(job.queries.rows.dtype);
  const auto k_dtype = static_cast<DType>(job.view->k.dtype);
  return keys.element_stride == int64_t{ElementBytes(k_dtype)} &&
         keys.group_elems == 0 && rows.minimum.base == 0 &&
         !KindsOf(rows).token_groups &&
         job.queries.rows.element_stride == element &&
         IsMultipleOf(16, {job.view->k.data, u(keys.row_stride),
                           u(keys.head_stride), u(keys.block_stride)}) &&
         IsMultipleOf(
             16, {AddressOf(job.queries.rows.base),
                  u(job.queries.rows.row_stride), u(job.queries.head_stride)});
}

bool LayoutAllowsFew(const ScoreJob& job) {
  return RowsOf(*job.view, job.view->k).wide == 16;
}

bool GoTogether(const ScoreJob& a, const ScoreJob& b) {
  return SameLayout(LayoutOf(*a.view, a.view->k),
                    LayoutOf(*b.view, b.view->k)) &&
         ShareNumbers(*a.view, a.view->k, *b.view, b.view->k) &&
         HaveLikeBiases(*a.view, *b.view) &&
         a.queries.rows.row_stride == b.queries.rows.row_stride &&
         a.queries.rows.element_stride == b.queries.rows.element_stride &&
         a.queries.head_stride == b.queries.head_stride &&
         a.queries.n_rows == b.queries.n_rows && a.n_sink == b.n_sink &&
         a.n_recent == b.n_recent &&
         (a.queries.lse == nullptr) == (b.queries.lse == nullptr) &&
         (a.sinks == nullptr) == (b.sinks == nullptr) &&
         a.queries.lse_row_stride == b.queries.lse_row_stride &&
         a.queries.lse_head_stride == b.queries.lse_head_stride &&
         a.queries.first_row == b.queries.first_row &&
         a.queries.ring_rows == b.queries.ring_rows &&
         (a.reference == nullptr || ListTogether(a, b)) &&
         InOneTable(a.tokens, b.tokens) &&
         LayoutAllowsMma(a) == LayoutAllowsMma(b) &&
         LayoutAllowsFew(a) == LayoutAllowsFew(b);
}

}  // namespace kvevict::cuda
