#include "core/context.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "core/backend.h"
#include "core/simd.h"

namespace kvevict {
namespace {

constexpr uint32_t kMaxThreads = 1024;

void* DefaultAlloc(size_t n_bytes, size_t alignment, void*) {
  // aligned_alloc wants a multiple of the alignment.
  const CheckedSize rounded = CheckedSize(n_bytes).AlignUp(alignment);
  return rounded.ok() ? std::aligned_alloc(alignment, rounded.value())
                      : nullptr;
}

void DefaultFree(void* memory, size_t, size_t, void*) { std::free(memory); }

Status CheckOptions(const kvevict_context_options& o) {
  if (o.device == KVEVICT_DEVICE_CPU && o.device_ordinal != 0) {
    return InvalidArgument("device_ordinal %d is not 0 on the CPU",
                           o.device_ordinal);
  }
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
  if (o.reserved != 0) {
    return InvalidArgument("reserved %u is not 0", o.reserved);
  }
  return Status();
}

}  // namespace

Status Context::Create(const kvevict_context_options& options, Context** out) {
  KV_RETURN_IF_ERROR(CheckOptions(options));
  const Backend* backend = nullptr;
  KV_RETURN_IF_ERROR(FindBackend(options.device, &backend));

  kvevict_context_options o = options;
  if (o.alloc == nullptr) {
    o.alloc = DefaultAlloc;
    o.free = DefaultFree;
  }
  if (o.n_threads == 0) o.n_threads = 1;
  void* memory = o.alloc(sizeof(Context), alignof(Context), o.alloc_user_data);
  if (memory == nullptr) {
    return OutOfMemory("context: no %zu bytes", sizeof(Context));
  }
  *out = new (memory) Context(o, *backend);
  (*out)->Log(KVEVICT_LOG_INFO, "context on %s, SIMD target %s, %u worker%s",
              backend->name, SimdTargetAt(0), o.n_threads,
              o.n_threads == 1 ? "" : "s");
  return Status();
}

void Context::Unref() const {
  if (n_refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const kvevict_context_options o = options_;
  this->~Context();
  o.free(const_cast<Context*>(this), sizeof(Context), alignof(Context),
         o.alloc_user_data);
}

void* Context::Allocate(size_t n_bytes, size_t alignment) const {
  return options_.alloc(n_bytes, alignment, options_.alloc_user_data);
}

void Context::Free(void* memory, size_t n_bytes, size_t alignment) const {
  options_.free(memory, n_bytes, alignment, options_.alloc_user_data);
}

void Context::Log(kvevict_log_level level, const char* format, ...) const {
  if (options_.log == nullptr || level > options_.log_level) return;
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  options_.log(level, line, options_.log_user_data);
}

}  // namespace kvevict
