#include "cuda/device.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/jit.h"
#include "cuda/no_memory.h"
#include "kvevict/experimental.h"

namespace kvevict::cuda {
namespace {

// Opens the driver and counts its GPUs; fails if there is none.
Status OpenAndCount(const LibraryPaths& paths, const Driver** driver, int* n) {
  KV_RETURN_IF_ERROR(Driver::Open(paths.driver, driver));
  KV_RETURN_IF_DRIVER_ERROR(**driver, cuDeviceGetCount(n), "cuDeviceGetCount");
  if (*n == 0) return Unavailable("device cuda: the driver sees no GPU");
  return Status();
}

Status FindCompiler(const LibraryPaths& paths, const Driver& driver,
                    const Device& device, int ordinal, const Nvrtc** out) {
  KV_RETURN_IF_ERROR(CheckDevice(device, ordinal));
  return Nvrtc::Open(paths.nvrtc, CudaMajor(driver.version), device.sm, out);
}

// A text that lives as long as the process. Each text is kept once.
const char* KeepText(std::string text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(std::move(text)).first->c_str();
}

}  // namespace

Status GetDevice(const Driver& driver, int ordinal, Device* out) {
  int n = 0;
  KV_RETURN_IF_DRIVER_ERROR(driver, cuDeviceGetCount(&n), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= n) {
    return InvalidArgument("device_ordinal %d is not in [0, %d)", ordinal, n);
  }
  KV_RETURN_IF_DRIVER_ERROR(driver, cuDeviceGet(&out->handle, ordinal),
                            "cuDeviceGet of GPU %d", ordinal);
  KV_RETURN_IF_DRIVER_ERROR(
      driver, cuDeviceGetName(out->name, sizeof(out->name), out->handle),
      "cuDeviceGetName of GPU %d", ordinal);
  int major = 0;
  int minor = 0;
  KV_RETURN_IF_DRIVER_ERROR(
      driver,
      cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                           out->handle),
      "cuDeviceGetAttribute of GPU %d", ordinal);
  KV_RETURN_IF_DRIVER_ERROR(
      driver,
      cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                           out->handle),
      "cuDeviceGetAttribute of GPU %d", ordinal);
  out->sm = 10 * major + minor;
  return Status();
}

Status CheckDevice(const Device& device, int ordinal) {
  if (device.sm >= kOldestSm) return Status();
  return Unavailable(
      "device cuda: GPU %d, %s, has compute capability %d.%d; %d.%d or newer "
      "is needed",
      ordinal, device.name, device.sm / 10, device.sm % 10, kOldestSm / 10,
      kOldestSm % 10);
}

Status DescribeGpu(const LibraryPaths& paths, uint32_t index,
                   kvevict_gpu_info* out) {
  const Driver* driver = nullptr;
  int n = 0;
  KV_RETURN_IF_ERROR(OpenAndCount(paths, &driver, &n));
  if (index >= static_cast<uint32_t>(n)) {
    return InvalidArgument("index %u >= %d GPUs", index, n);
  }
  const int ordinal = static_cast<int>(index);
  Device device;
  KV_RETURN_IF_ERROR(GetDevice(*driver, ordinal, &device));
  return WithoutThrowing("describing a GPU", [&] {
    kvevict_gpu_info row{};
    row.compute_capability = device.sm;
    row.driver_version = driver->version;
    row.name = KeepText(device.name);
    row.target = row.nvrtc = row.problem = "";
    const KeptErrorMessage kept;
    const Nvrtc* nvrtc = nullptr;
    Target target;
    Status usable = FindCompiler(paths, *driver, device, ordinal, &nvrtc);
    if (usable.ok()) usable = nvrtc->FindTarget(device.sm, &target);
    if (usable.ok()) {
      row.nvrtc_version = nvrtc->version();
      row.nvrtc = nvrtc->name().c_str();
      row.target = KeepText(target.name());
    } else {
      row.problem = KeepText(LastErrorMessage());
    }
    *out = row;
    return Status();
  });
}

Status CheckAvailable(const LibraryPaths& paths) {
  const Driver* driver = nullptr;
  int n = 0;
  KV_RETURN_IF_ERROR(OpenAndCount(paths, &driver, &n));

  // What works for an older GPU works for a newer one too, so the newest
  // decides.
  Device newest;
  int ordinal = 0;
  for (int i = 0; i < n; ++i) {
    Device device;
    KV_RETURN_IF_ERROR(GetDevice(*driver, i, &device));
    if (device.sm <= newest.sm) continue;
    newest = device;
    ordinal = i;
  }
  const Nvrtc* nvrtc = nullptr;
  return FindCompiler(paths, *driver, newest, ordinal, &nvrtc);
}

}  // namespace kvevict::cuda
