// A context: the host's hooks for memory, parallel work and log. It is shared
// and reference-counted.
#ifndef KVEVICT_CORE_CONTEXT_H_
#define KVEVICT_CORE_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "core/checked_math.h"
#include "core/float_mode.h"
#include "core/memory/memory_pool.h"
#include "core/simd.h"
#include "core/status.h"

namespace kvevict {

// Calls an allocator of the host. std::bad_alloc counts as NULL. Hooks may
// throw nothing else: their callers are noexcept, so that no work stops
// halfway.
void* CallAllocator(kvevict_alloc_fn alloc, size_t n_bytes, size_t alignment,
                    void* user_data) noexcept;

struct Backend;
class DeviceState;

class Context {
 public:
  static Status Create(const kvevict_context_options& options, Context** out);

  void Ref() const { n_refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const noexcept;

  const Backend& backend() const { return backend_; }
  DeviceState* device_state() const { return device_state_; }
  const kvevict_context_options& options() const { return options_; }
  uint32_t n_workers() const { return options_.n_threads; }
  SimdTarget simd() const { return simd_; }
  MemoryPool& query_memory() const { return query_memory_; }

  void* Allocate(size_t n_bytes, size_t alignment) const noexcept;
  void Free(void* memory, size_t n_bytes, size_t alignment) const noexcept;

  [[gnu::format(printf, 3, 4)]] void Log(kvevict_log_level level,
                                         const char* format,
                                         ...) const noexcept;

  // Runs body(item, worker) for every item in [0, n_items), in any order.
  template <typename Body>
  void ParallelFor(uint32_t n_items, const Body& body) const noexcept {
    if (options_.parallel == nullptr || n_items <= 1) {
      for (uint32_t i = 0; i < n_items; ++i) body(i, 0u);
      return;
    }
    options_.parallel(
        n_items,
        [](void* task, uint32_t item, uint32_t worker) {
          const DefaultFloatMode mode;  // workers are threads of the host
          (*static_cast<const Body*>(task))(item, worker);
        },
        const_cast<Body*>(&body), options_.parallel_user_data);
  }

 private:
  Context(const kvevict_context_options& options, const Backend& backend,
          SimdTarget simd)
      : options_(options), backend_(backend), simd_(simd) {}
  ~Context();

  const kvevict_context_options options_;  // texts in it are not kept
  const Backend& backend_;
  const SimdTarget simd_;
  DeviceState* device_state_ = nullptr;
  mutable MemoryPool query_memory_;
  mutable std::atomic<uint32_t> n_refs_{1};
};

// Keeps an object that has Ref() and Unref() alive.
template <typename T>
class Retained {
 public:
  explicit Retained(const T& object) : object_(&object) { object_->Ref(); }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;
  ~Retained() { object_->Unref(); }

  const T& operator*() const { return *object_; }
  const T* operator->() const { return object_; }

 private:
  const T* object_;
};

// An array in memory of a context's allocator.
template <typename T>
class Array {
 public:
  explicit Array(const Context& context) : context_(context) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (data_ != nullptr) context_.Free(data_, n_ * sizeof(T), kAlignment);
  }

  // Zero-filled.
  Status Allocate(const char* what, CheckedSize n) {
    KV_RETURN_IF_ERROR(AllocateUncleared(what, n));
    for (size_t i = 0; i < n_; ++i) new (&data_[i]) T();
    return Status();
  }

  // Not cleared, so it takes no time however large it is.
  Status AllocateUncleared(const char* what, CheckedSize n) {
    const CheckedSize n_bytes = n * CheckedSize(sizeof(T));
    if (!n_bytes.ok()) {
      return InvalidArgument("%s: more bytes than size_t holds", what);
    }
    if (n_bytes.value() == 0) return Status();
    void* memory = context_.Allocate(n_bytes.value(), kAlignment);
    if (memory == nullptr) {
      return OutOfMemory("%s: no memory for %zu bytes", what, n_bytes.value());
    }
    data_ = static_cast<T*>(memory);
    n_ = n.value();
    return Status();
  }

  void Swap(Array& other) {
    std::swap(data_, other.data_);
    std::swap(n_, other.n_);
  }

  T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + n_; }

 private:
  static constexpr size_t kAlignment = 64;

  const Context& context_;
  T* data_ = nullptr;
  size_t n_ = 0;
};

// Creates and destroys an object in memory of a context's allocator.
template <typename T, typename... Args>
T* NewObject(const Context& context, Args&&... args) {
  void* memory = context.Allocate(sizeof(T), alignof(T));
  if (memory == nullptr) return nullptr;
  return new (memory) T(std::forward<Args>(args)...);
}

template <typename T>
void DeleteObject(const Context& context, T* object) {
  const Retained<Context> alive(
      context);  // the object may hold the last reference
  object->~T();
  context.Free(object, sizeof(T), alignof(T));
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_CONTEXT_H_
