// Memory on a context's device.
#ifndef KVEVICT_CORE_MEMORY_DEVICE_ARRAY_H_
#define KVEVICT_CORE_MEMORY_DEVICE_ARRAY_H_

#include <utility>

#include "core/backend.h"
#include "core/context.h"

namespace kvevict {

// An array in device memory. Only backends access its elements.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const Context& context) : context_(context) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) context_.backend().free(context_, data_, n_bytes_);
  }

  // Zero-filled.
  Status Allocate(const char* what, CheckedSize n) {
    KV_RETURN_IF_ERROR(AllocateUncleared(what, n));
    if (data_ == nullptr) return Status();
    return context_.backend().clear(context_, data_, n_bytes_);
  }

  // Not cleared, so it takes no time however large it is.
  Status AllocateUncleared(const char* what, CheckedSize n) {
    const CheckedSize n_bytes = n * CheckedSize(sizeof(T));
    if (!n_bytes.ok()) {
      return InvalidArgument("%s: more bytes than size_t holds", what);
    }
    if (n_bytes.value() == 0) return Status();
    void* memory = nullptr;
    KV_RETURN_IF_ERROR(
        context_.backend().allocate(context_, what, n_bytes.value(), &memory));
    data_ = static_cast<T*>(memory);
    n_bytes_ = n_bytes.value();
    return Status();
  }

  void Swap(DeviceArray& other) {
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
  }

  T* data() const { return data_; }

 private:
  const Context& context_;
  T* data_ = nullptr;
  size_t n_bytes_ = 0;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_MEMORY_DEVICE_ARRAY_H_
