#include "cuda/alignment.h"

#include "core/dtype.h"
#include "core/signals/signal.h"
#include "core/view/view.h"
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
      "%s at 0x%llx: address and strides are not multiples of %u bytes, as "
      "CUDA needs to read elements of their dtype",
      what, static_cast<unsigned long long>(data), element_bytes);
}

namespace {

// Bytes that one load reads: an element, its byte, or its block's scale.
uint32_t BytesOfLoads(const DTypeInfo& info) {
  if (info.is_plain()) return info.element_bytes;
  return info.packing == Packing::kBlocks ? sizeof(uint16_t) : 1;
}

Status CheckPlaneAligned(const char* what, const kvevict_view& view,
                         const kvevict_plane& plane) {
  const RowLayout rows = LayoutOf(view, plane);
  const DTypeInfo& info = InfoOf(static_cast<DType>(plane.dtype));
  return CheckAligned(
      what, plane.data,
      {rows.row_stride, info.is_plain() ? rows.element_stride : 0,
       view.n_kv_heads > 1 ? rows.head_stride : 0,
       rows.block_size > 0 ? rows.block_stride : 0, rows.group_stride},
      BytesOfLoads(info));
}

}  // namespace

Status CheckRowsAligned(const char* what, const kvevict_view& view,
                        const kvevict_plane& plane) {
  KV_RETURN_IF_ERROR(CheckPlaneAligned(what, view, plane));
  for (const bool minimum : {false, true}) {
    const kvevict_plane* const numbers = FindNumbers(view, plane, minimum);
    if (numbers == nullptr) continue;
    KV_RETURN_IF_ERROR(
        CheckPlaneAligned(minimum ? "minima" : "scales", view, *numbers));
  }
  const kvevict_plane* const recent = FindRecent(view, plane);
  if (recent == nullptr) return Status();
  return CheckAligned("recent rows", recent->data,
                      {recent->token_stride_bytes,
                       view.n_kv_heads > 1 ? recent->head_stride_bytes : 0},
                      ElementBytes(static_cast<DType>(recent->dtype)));
}

Status CheckKeysAligned(const kvevict_view& view) {
  return CheckRowsAligned("keys", view, view.k);
}

Status CheckBiasesAligned(const kvevict_view& view) {
  const kvevict_plane* const biases = BiasesOf(view);
  if (biases == nullptr) return Status();
  return CheckPlaneAligned("biases", view, *biases);
}

Status CheckReading(const Context& context, Stream stream,
                    const ScoreArgs& args,
                    std::initializer_list<ModuleId> modules) {
  const SignalInfo& signal = SignalOf(args.policy);
  for (const ScoreJob& job : args.jobs) {
    if (signal.Needs(kKeys)) KV_RETURN_IF_ERROR(CheckKeysAligned(*job.view));
    if (!signal.Needs(kValues)) continue;
    KV_RETURN_IF_ERROR(CheckRowsAligned("values", *job.view, job.view->v));
  }
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  const auto keys = &kvevict_view::k;
  const auto values = &kvevict_view::v;
  const auto first = signal.Needs(kKeys) ? keys : values;
  const auto second = signal.Needs(kValues) ? values : keys;
  for (const ModuleId module : modules) {
    KV_RETURN_IF_ERROR(
        RequireReader(context, stream, args.jobs, module, {first, second}));
  }
  return Status();
}

}  // namespace kvevict::cuda
