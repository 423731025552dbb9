#include "capi/guard.h"
#include "core/backend.h"
#include "core/dtype.h"
#include "core/simd.h"
#include "kvevict/experimental.h"

namespace kvevict::capi {

// The public enumerators are written by hand, and agree with the rows.
#define KVEVICT_DTYPE(Name, text, id, bytes, block, block_bytes, scale, \
                      minimum, move, score, rotate, packing, codes,     \
                      PUBLIC_NAME)                                      \
  static_assert(id == KVEVICT_DTYPE_##PUBLIC_NAME);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE

}  // namespace kvevict::capi

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

extern "C" {

kvevict_status kvevict_device_check(kvevict_device device) noexcept {
  return Guard([&] {
    const Backend* backend;
    KV_RETURN_IF_ERROR(FindBackend(device, &backend));
    return backend->check();
  });
}

kvevict_status kvevict_gpu_at(uint32_t index, kvevict_gpu_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_gpu_info row{};
    const Backend* cuda = nullptr;
    KV_RETURN_IF_ERROR(FindBackend(KVEVICT_DEVICE_CUDA, &cuda));
    KV_RETURN_IF_ERROR(cuda->gpu_at(index, &row));
    CopyOut(row, out);
    return Status();
  });
}

kvevict_status kvevict_dtype_at(uint32_t index,
                                kvevict_dtype_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    if (index >= std::size(kDTypes)) {
      return InvalidArgument("index %u >= %zu dtypes", index,
                             std::size(kDTypes));
    }
    const DTypeInfo& info = kDTypes[index];
    kvevict_dtype_info row{};
    row.dtype = static_cast<kvevict_dtype>(info.dtype);
    row.name = info.name;
    row.element_bytes = info.element_bytes;
    row.can_move = info.can_move && info.is_built;
    row.can_score = info.can_score && info.is_built;
    row.can_rotate = info.can_rotate && info.is_built;
    row.block_elements = info.block_elements;
    row.block_bytes = info.block_bytes;
    row.takes_scale = static_cast<uint32_t>(info.scale);
    row.takes_minimum = info.takes_minimum;
    CopyOut(row, out);
    return Status();
  });
}

const char* kvevict_simd_target_at(uint32_t index) noexcept {
  return SimdTargetAt(index).name;
}

kvevict_status kvevict_context_create(const kvevict_context_options* options,
                                      kvevict_context** out_context) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("out_context", out_context));
    kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;
    if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    Context* context = nullptr;
    KV_RETURN_IF_ERROR(Context::Create(o, &context));
    *out_context = reinterpret_cast<kvevict_context*>(context);
    return Status();
  });
}

kvevict_status kvevict_context_prepare(const kvevict_context* context,
                                       const kvevict_plan* plan) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    const Context& c = Core(context);
    if (plan != nullptr && &Core(plan).context() != &c) {
      return InvalidArgument("plan was made from another context");
    }
    KV_RETURN_IF_ERROR(c.backend().prepare(c));
    return plan == nullptr ? Status() : Core(plan).PrepareScoring();
  });
}

void kvevict_context_destroy(kvevict_context* context) noexcept {
  if (context != nullptr) Core(context).Unref();
}

}  // extern "C"
