#include "cuda/alignment.h"

#include "core/dtype.h"
#include "core/signal.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

Status CheckAligned(const char* what, uint64_t data,
                    std::initializer_list<int64_t> strides,
                    uint32_t element_bytes) {
  uint64_t all = data;
  for (const int64_t stride : strides) all |= static_cast<uint64_t>(stride);
  if (all % element_bytes == 0) return Status();
  return Unsupported(
      "%s at 0x%llx: address and strides are not multiples of %u bytes, the "
      "size of an element, as CUDA needs to read them",
      what, static_cast<unsigned long long>(data), element_bytes);
}

Status CheckRowsAligned(const char* what, const kvevict_view& view,
                        const kvevict_plane& plane) {
  const RowLayout rows = LayoutOf(view, plane);
  return CheckAligned(
      what, plane.data,
      {rows.row_stride, rows.element_stride,
       view.n_kv_heads > 1 ? rows.head_stride : 0,
       rows.block_size > 0 ? rows.block_stride : 0, rows.group_stride},
      ElementBytes(static_cast<DType>(plane.dtype)));
}

Status CheckKeysAligned(const ScoreJob& job) {
  return CheckRowsAligned("keys", *job.view, job.view->k);
}

Status CheckReading(const Context& context, Stream stream,
                    const ScoreArgs& args,
                    std::initializer_list<ModuleId> modules) {
  const bool reads_values = SignalOf(args.policy).Needs(kValues);
  for (const ScoreJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckKeysAligned(job));
    if (!reads_values) continue;
    KV_RETURN_IF_ERROR(CheckRowsAligned("values", *job.view, job.view->v));
  }
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  for (const ModuleId module : modules) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  return Status();
}

}  // namespace kvevict::cuda
