#include "cuda/device.h"

#include "cuda/jit.h"

namespace kvevict::cuda {

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

Status CheckAvailable(const LibraryPaths& paths) {
  const Driver* driver = nullptr;
  KV_RETURN_IF_ERROR(Driver::Open(paths.driver, &driver));
  int n = 0;
  KV_RETURN_IF_DRIVER_ERROR(*driver, cuDeviceGetCount(&n), "cuDeviceGetCount");
  if (n == 0) return Unavailable("device cuda: the driver sees no GPU");

  // What serves an older GPU serves a newer one too: the newest decides.
  Device newest;
  int ordinal = 0;
  for (int i = 0; i < n; ++i) {
    Device device;
    KV_RETURN_IF_ERROR(GetDevice(*driver, i, &device));
    if (device.sm <= newest.sm) continue;
    newest = device;
    ordinal = i;
  }
  KV_RETURN_IF_ERROR(CheckDevice(newest, ordinal));
  const Nvrtc* nvrtc = nullptr;
  return Nvrtc::Open(paths.nvrtc, CudaMajor(driver->version), newest.sm,
                     &nvrtc);
}

}  // namespace kvevict::cuda
