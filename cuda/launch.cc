#include "cuda/launch.h"

#include "cuda/device_state.h"
#include "cuda/kernels/lag.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool_select.h"

namespace kvevict::cuda {
namespace {

// Enters the CUcontext for work on a stream. With debug set it checks that the
// stream can be waited for.
Status EnterStream(const DeviceState& device, CUstream stream,
                   ContextScope* scope) {
  KV_RETURN_IF_ERROR(device.Enter(scope));
  return device.debug() ? device.CheckCanWait(stream, "debug") : Status();
}

}  // namespace

ModuleKey KeyOf(const Context& context, ModuleId id) {
  ModuleKey key;
  key.module = id;
  const auto sm = static_cast<uint32_t>(DeviceOf(context).sm());
  if (id == ModuleId::pool_select) {
    key.dynamic_shared_bytes = MostPoolSelectBytes(sm);
  }
  if (id == ModuleId::lag) key.dynamic_shared_bytes = MostLagBytes(sm);
  return key;
}

ModuleKey ReaderOf(const Context& context, ModuleId id, const RowKinds& kinds) {
  ModuleKey key = KeyOf(context, id);
  if ((kinds.dtypes & ~kPlainDTypes) != 0) key.Add("KV_DTYPES", kinds.dtypes);
  if (kinds.token_groups) key.Add("KV_TOKEN_GROUPS", 1);
  return key;
}

Status Require(const Context& context, Stream stream, const ModuleKey& module) {
  const DeviceState& device = DeviceOf(context);
  ContextScope scope(device.driver());
  const auto cu_stream = static_cast<CUstream>(stream);
  KV_RETURN_IF_ERROR(EnterStream(device, cu_stream, &scope));
  const Module* found = nullptr;
  return device.modules().Find(module, cu_stream, &found);
}

Status LaunchKernel(const Context& context, Stream stream,
                    const ModuleKey& module_key, KernelId kernel,
                    const LaunchShape& shape, const void* params) {
  const DeviceState& device = DeviceOf(context);
  const Driver& driver = device.driver();
  ContextScope scope(device.driver());
  const auto cu_stream = static_cast<CUstream>(stream);
  KV_RETURN_IF_ERROR(EnterStream(device, cu_stream, &scope));
  const Module* module = nullptr;
  KV_RETURN_IF_ERROR(device.modules().Find(module_key, cu_stream, &module));
  void* arguments[] = {const_cast<void*>(params)};
  KV_RETURN_IF_DRIVER_ERROR(
      driver,
      cuLaunchKernel(module->function(kernel), shape.grid_x, shape.grid_y,
                     shape.grid_z, shape.threads, 1, 1, shape.shared_bytes,
                     cu_stream, arguments, nullptr),
      "cuLaunchKernel of %s, grid %u x %u x %u, %u threads",
      InfoOf(kernel).name, shape.grid_x, shape.grid_y, shape.grid_z,
      shape.threads);
  if (!device.debug()) return Status();
  const RelaxedCapture relaxed(driver);
  KV_RETURN_IF_DRIVER_ERROR(driver, cuStreamSynchronize(cu_stream),
                            "running %s, grid %u x %u x %u, %u threads",
                            InfoOf(kernel).name, shape.grid_x, shape.grid_y,
                            shape.grid_z, shape.threads);
  return Status();
}

Status Clear(const Context& context, Stream stream, uint64_t address,
             size_t n_bytes) {
  const DeviceState& device = DeviceOf(context);
  ContextScope scope(device.driver());
  const auto cu_stream = static_cast<CUstream>(stream);
  KV_RETURN_IF_ERROR(EnterStream(device, cu_stream, &scope));
  KV_RETURN_IF_DRIVER_ERROR(device.driver(),
                            cuMemsetD8Async(address, 0, n_bytes, cu_stream),
                            "cuMemsetD8Async of %zu bytes", n_bytes);
  return Status();
}

}  // namespace kvevict::cuda
