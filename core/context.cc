#include "core/context.h"

#include <cstdarg>
#include <cstdio>
#include <new>
#include <utility>

#include "core/backend.h"
#include "core/platform.h"

namespace kvevict {
namespace {

constexpr uint32_t kMaxThreads = 1024;

void* DefaultAlloc(size_t n_bytes, size_t alignment, void*) {
  const CheckedSize rounded = CheckedSize(n_bytes).AlignUp(alignment);
  return rounded.ok() ? platform::AllocateAligned(alignment, rounded.value())
                      : nullptr;
}

void DefaultFree(void* memory, size_t, size_t, void*) {
  platform::FreeAligned(memory);
}

// Checks options that only CUDA reads.
Status CheckDeviceOptions(const kvevict_context_options& o) {
  if ((o.device_alloc == nullptr) != (o.device_free == nullptr)) {
    return InvalidArgument(
        "device_alloc and device_free must both be NULL or both be set");
  }
  for (const auto& [name, value] :
       {std::pair("select_on_host", o.select_on_host),
        std::pair("debug", o.debug)}) {
    if (value > 1) return InvalidArgument("%s %u is not 0 or 1", name, value);
  }
  if (o.device != KVEVICT_DEVICE_CPU) return Status();
  const char* given = o.cuda_context != nullptr       ? "cuda_context"
                      : o.libcuda_path != nullptr     ? "libcuda_path"
                      : o.libnvrtc_path != nullptr    ? "libnvrtc_path"
                      : o.kernel_cache_dir != nullptr ? "kernel_cache_dir"
                      : o.device_alloc != nullptr     ? "device_alloc"
                      : o.device_alloc_user_data      ? "device_alloc_user_data"
                      : o.select_on_host != 0         ? "select_on_host"
                      : o.debug != 0                  ? "debug"
                                                      : nullptr;
  if (given == nullptr) return Status();
  return InvalidArgument("%s given, but the device is the CPU", given);
}

Status CheckOptions(const kvevict_context_options& o) {
  KV_RETURN_IF_ERROR(CheckDeviceOptions(o));
  if (o.n_threads > kMaxThreads) {
    return InvalidArgument("n_threads %u > %u", o.n_threads, kMaxThreads);
  }
  if (o.n_threads > 1 && o.parallel == nullptr) {
    return InvalidArgument("n_threads %u > 1 without a parallel hook",
                           o.n_threads);
  }
  if ((o.alloc == nullptr) != (o.free == nullptr)) {
    return InvalidArgument("alloc and free must both be NULL or both be set");
  }
  if (o.log_level < KVEVICT_LOG_WARNING || o.log_level > KVEVICT_LOG_DEBUG) {
    return InvalidArgument("log_level %d is not in [0, %d]",
                           static_cast<int>(o.log_level),
                           static_cast<int>(KVEVICT_LOG_DEBUG));
  }
  return Status();
}

}  // namespace

void* CallAllocator(kvevict_alloc_fn alloc, size_t n_bytes, size_t alignment,
                    void* user_data) noexcept {
#ifdef __cpp_exceptions
  try {
    return alloc(n_bytes, alignment, user_data);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
#else
  return alloc(n_bytes, alignment, user_data);
#endif
}

Status Context::Create(const kvevict_context_options& options, Context** out) {
  KV_RETURN_IF_ERROR(CheckOptions(options));
  const Backend* backend = nullptr;
  KV_RETURN_IF_ERROR(FindBackend(options.device, &backend));
  SimdTarget simd;
  KV_RETURN_IF_ERROR(FindSimdTarget(options.simd_target, &simd));

  kvevict_context_options o = options;
  if (o.alloc == nullptr) {
    o.alloc = DefaultAlloc;
    o.free = DefaultFree;
  }
  if (o.n_threads == 0) o.n_threads = 1;
  o.simd_target = o.libcuda_path = o.libnvrtc_path = o.kernel_cache_dir =
      nullptr;
  void* memory = CallAllocator(o.alloc, sizeof(Context), alignof(Context),
                               o.alloc_user_data);
  if (memory == nullptr) {
    return OutOfMemory("context: no memory for %zu bytes", sizeof(Context));
  }
  Context* context = new (memory) Context(o, *backend, simd);
  if (Status status = backend->open(*context, options, &context->device_state_);
      !status.ok()) {
    context->Unref();
    return status;
  }
  *out = context;
  (*out)->Log(KVEVICT_LOG_INFO, "context on %s, SIMD target %s, %u worker%s",
              backend->name, simd.name, o.n_threads,
              o.n_threads == 1 ? "" : "s");
  return Status();
}

Context::~Context() {
  query_memory_.Clear(*this);
  backend_.close(device_state_);
}

void Context::Unref() const noexcept {
  if (n_refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const kvevict_context_options o = options_;
  this->~Context();
  o.free(const_cast<Context*>(this), sizeof(Context), alignof(Context),
         o.alloc_user_data);
}

void* Context::Allocate(size_t n_bytes, size_t alignment) const noexcept {
  return CallAllocator(options_.alloc, n_bytes, alignment,
                       options_.alloc_user_data);
}

void Context::Free(void* memory, size_t n_bytes,
                   size_t alignment) const noexcept {
  options_.free(memory, n_bytes, alignment, options_.alloc_user_data);
}

void Context::Log(kvevict_log_level level, const char* format,
                  ...) const noexcept {
  if (options_.log == nullptr || level > options_.log_level) return;
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  options_.log(level, line, options_.log_user_data);
}

}  // namespace kvevict
