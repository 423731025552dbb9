// CUDA's implementation of the backend table: memory here, launches in the
// other files of this folder.
#include "core/backend.h"
#include "core/context.h"
#include "core/policy/policy.h"
#include "cuda/device_state.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

using namespace cuda;  // NOLINT: connects core and cuda

constexpr size_t kMemoryAlignment = 256;

Status Check() { return CheckAvailable({}); }

Status GpuAt(uint32_t index, kvevict_gpu_info* out) {
  return DescribeGpu({}, index, out);
}

void Close(DeviceState* state) { delete state; }

Status Prepare(const Context& context) {
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  for (size_t i = 0; i < kNModules; ++i) {
    const auto id = static_cast<ModuleId>(i);
    if (NeedsConstants(id)) continue;
    KV_RETURN_IF_ERROR(Require(context, DeviceOf(context).stream(), id));
  }
  return Status();
}

Status CheckCapture(const Context& context, Stream stream, const Policy& policy,
                    bool ranks, bool measures) {
  const DeviceState& device = DeviceOf(context);
  ContextScope scope(device.driver());
  KV_RETURN_IF_ERROR(device.Enter(&scope));
  const auto cu_stream = static_cast<CUstream>(stream);
  bool captured = false;
  KV_RETURN_IF_ERROR(IsCaptured(device.driver(), cu_stream, &captured));
  if (!captured) return Status();
  if (device.debug()) return device.CheckCanWait(cu_stream, "debug");
  if (context.options().select_on_host != 0) {
    return device.CheckCanWait(cu_stream, "select_on_host");
  }
  if (CountsByScore(policy)) {
    return device.CheckCanWait(cu_stream, "heads that are not equal");
  }
  if (SplitsByScore(policy)) {
    return device.CheckCanWait(cu_stream, "a split over layers by score");
  }
  // Scoring checks this itself.
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  for (const ModuleId module : {ModuleId::gather_rows, ModuleId::positions}) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  if (RescuesBlocks(policy)) {
    KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::rescue));
  }
  if (ranks) {
    KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::rank_keys));
  }
  if (measures) KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::mass));
  if (policy.secure == 0.0) return Status();
  return Require(context, stream, ModuleId::best_scores);
}

// ---- Memory ----

Status Allocate(const Context& context, const char* what, size_t n_bytes,
                void** out) {
  const kvevict_context_options& o = context.options();
  const Driver& driver = DeviceOf(context).driver();
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  const RelaxedCapture relaxed(driver);
  CUdeviceptr memory = 0;
  if (o.device_alloc != nullptr) {
    *out = CallAllocator(o.device_alloc, n_bytes, kMemoryAlignment,
                         o.device_alloc_user_data);
    memory = AddressOf(*out);
  } else {
    const CUresult result = driver.cuMemAlloc(&memory, n_bytes);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
      return DriverStatus(driver, result, "cuMemAlloc of %zu bytes", n_bytes);
    }
    *out = reinterpret_cast<void*>(memory);
  }
  if (memory == 0) {
    return OutOfMemory("%s: no device memory for %zu bytes", what, n_bytes);
  }
  return Status();
}

Status Clear(const Context& context, void* memory, size_t n_bytes) {
  const Driver& driver = DeviceOf(context).driver();
  ContextScope scope(driver);
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  const RelaxedCapture relaxed(driver);
  CUstream stream = DeviceOf(context).stream();
  KV_RETURN_IF_DRIVER_ERROR(
      driver, cuMemsetD8Async(AddressOf(memory), 0, n_bytes, stream),
      "clearing %zu bytes", n_bytes);
  KV_RETURN_IF_DRIVER_ERROR(driver, cuStreamSynchronize(stream),
                            "clearing %zu bytes", n_bytes);
  return Status();
}

void Free(const Context& context, void* memory, size_t n_bytes) noexcept {
  const kvevict_context_options& o = context.options();
  ContextScope scope(DeviceOf(context).driver());
  if (!DeviceOf(context).Enter(&scope).ok()) return;
  const RelaxedCapture relaxed(DeviceOf(context).driver());
  if (o.device_free != nullptr) {
    o.device_free(memory, n_bytes, kMemoryAlignment, o.device_alloc_user_data);
  } else {
    (void)DeviceOf(context).driver().cuMemFree(AddressOf(memory));
  }
}

Status Read(const Context& context, Stream stream, const void* device,
            size_t n_bytes, void* host) {
  const Driver& driver = DeviceOf(context).driver();
  const auto cu_stream = static_cast<CUstream>(stream);
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  KV_RETURN_IF_ERROR(
      DeviceOf(context).CheckCanWait(cu_stream, "copying to the host"));
  const RelaxedCapture relaxed(driver);
  KV_RETURN_IF_DRIVER_ERROR(
      driver, cuMemcpyDtoHAsync(host, AddressOf(device), n_bytes, cu_stream),
      "cuMemcpyDtoHAsync of %zu bytes", n_bytes);
  KV_RETURN_IF_DRIVER_ERROR(driver, cuStreamSynchronize(cu_stream),
                            "cuStreamSynchronize");
  return Status();
}

Status Write(const Context& context, Stream stream, const void* host,
             size_t n_bytes, void* device) {
  const Driver& driver = DeviceOf(context).driver();
  const auto cu_stream = static_cast<CUstream>(stream);
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  KV_RETURN_IF_ERROR(
      DeviceOf(context).CheckCanWait(cu_stream, "copying from the host"));
  const RelaxedCapture relaxed(driver);
  KV_RETURN_IF_DRIVER_ERROR(
      driver, cuMemcpyHtoDAsync(AddressOf(device), host, n_bytes, cu_stream),
      "cuMemcpyHtoDAsync of %zu bytes", n_bytes);
  // The host's memory may be registered and would then be read later.
  KV_RETURN_IF_DRIVER_ERROR(driver, cuStreamSynchronize(cu_stream),
                            "cuStreamSynchronize");
  return Status();
}

Status Copy(const Context& context, Stream stream, const void* from,
            size_t n_bytes, void* to) {
  const Driver& driver = DeviceOf(context).driver();
  ContextScope scope(driver);
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  KV_RETURN_IF_DRIVER_ERROR(
      driver,
      cuMemcpyDtoDAsync(AddressOf(to), AddressOf(from), n_bytes,
                        static_cast<CUstream>(stream)),
      "cuMemcpyDtoDAsync of %zu bytes", n_bytes);
  return Status();
}

}  // namespace

const Backend kCudaBackend = {
    .name = "cuda",
    .workspace_alignment = kMemoryAlignment,
    .on_host = false,
    .check = Check,
    .gpu_at = GpuAt,
    .open = DeviceState::Open,
    .close = Close,
    .prepare = Prepare,
    .check_capture = CheckCapture,
    .allocate = Allocate,
    .free = Free,
    .clear = Clear,
    .read = Read,
    .write = Write,
    .copy = Copy,
#define KVEVICT_OP(name, Args) .name = kOp_##name,
#define KVEVICT_SCORE_OP(name) .name = &kOp_##name,
#include "core/ops.inc"
};

}  // namespace kvevict
