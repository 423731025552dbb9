// Memory: allocations, copies, fills. A call may only touch one allocation of
// the current context.
#include <cstdlib>
#include <cstring>

#include "tests/rig/mock/state.h"
#include "tests/rig/ptx/error.h"

namespace kvevict::mock {

namespace {

// The bytes at an address; NULL after noting the misuse.
uint8_t* At(Call& call, CUdeviceptr address, size_t n_bytes) {
  uint8_t* found = call.context->memory.Find(address, n_bytes);
  if (found == nullptr) {
    call.Misuse(CUDA_ERROR_INVALID_VALUE,
                std::to_string(n_bytes) + " bytes at " + ptx::Hex(address) +
                    " are in no allocation of the current context");
  }
  return found;
}

size_t BytesInUse(const Context& context) {
  size_t sum = 0;
  for (const auto& [address, bytes] : context.allocations) sum += bytes;
  return sum;
}

// Touches memory when the stream gets there. It may be freed by then.
template <class Act>
CUresult EnqueueAccess(Call& call, CUstream stream, CUdeviceptr address,
                       size_t n_bytes, Act act) {
  if (At(call, address, n_bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = call.context;
  return call.Enqueue(stream, [=]() -> CUresult {
    uint8_t* found = context->memory.Find(address, n_bytes);
    if (found == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
    act(found);
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVEVICT_MOCK_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t n_bytes) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  Context& context = *call.context;
  if (n_bytes == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "0 bytes");
  }
  if (n_bytes > call.state.settings.memory_bytes - BytesInUse(context)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = call.state.settings.host_memory
             ? reinterpret_cast<CUdeviceptr>(
                   std::aligned_alloc(256, (n_bytes + 255) / 256 * 256))
             : context.memory.Allocate(n_bytes);
  context.allocations[*out] = n_bytes;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemFree_v2(CUdeviceptr address) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  if (call.context->allocations.erase(address) == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       ptx::Hex(address) +
                           " is no allocation of the current context, or was "
                           "freed before");
  }
  if (call.state.settings.host_memory) {
    std::free(reinterpret_cast<void*>(address));
  } else {
    call.context->memory.Free(address);
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemGetInfo_v2(size_t* out_free, size_t* out_total) {
  KVEVICT_MOCK_CALL(kContext);
  *out_total = call.state.settings.memory_bytes;
  *out_free = *out_total - BytesInUse(*call.context);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemAllocHost_v2(void** out, size_t n_bytes) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  auto bytes = std::make_unique<uint8_t[]>(n_bytes);
  *out = bytes.get();
  call.state.host_allocations.emplace(*out, std::move(bytes));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemFreeHost(void* memory) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  if (call.state.host_allocations.erase(memory) == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "no allocation");
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from,
                                          size_t n_bytes) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  uint8_t* found = At(call, to, n_bytes);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(found, from, n_bytes);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from,
                                          size_t n_bytes) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  const uint8_t* found = At(call, from, n_bytes);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(to, found, n_bytes);
  return CUDA_SUCCESS;
}

// Pageable memory is read before the call returns. Page-locked memory, and
// whatever a graph copies, is read when the stream gets there.
KVEVICT_MOCK_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from,
                                               size_t n_bytes,
                                               CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  Stream* found = nullptr;
  const CUresult result = call.FindStream(stream, &found);
  if (result != CUDA_SUCCESS) return result;
  const auto* source = static_cast<const uint8_t*>(from);
  const bool later =
      (found != nullptr && found->capture != Capture::kNone) ||
      call.state.host_allocations.count(const_cast<void*>(from)) != 0;
  std::vector<uint8_t> copy;
  if (!later) copy.assign(source, source + n_bytes);
  return EnqueueAccess(call, stream, to, n_bytes, [=](uint8_t* bytes) {
    std::memcpy(bytes, later ? source : copy.data(), n_bytes);
  });
}

KVEVICT_MOCK_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from,
                                               size_t n_bytes,
                                               CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  return EnqueueAccess(call, stream, from, n_bytes, [=](const uint8_t* bytes) {
    std::memcpy(to, bytes, n_bytes);
  });
}

KVEVICT_MOCK_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from,
                                               size_t n_bytes,
                                               CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  if (At(call, from, n_bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (to < from + n_bytes && from < to + n_bytes) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "the ranges overlap");
  }
  Context* context = call.context;
  return EnqueueAccess(call, stream, to, n_bytes, [=](uint8_t* bytes) {
    const uint8_t* source = context->memory.Find(from, n_bytes);
    if (source != nullptr) std::memcpy(bytes, source, n_bytes);
  });
}

KVEVICT_MOCK_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                          size_t n_bytes, CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  return EnqueueAccess(call, stream, to, n_bytes, [=](uint8_t* bytes) {
    std::memset(bytes, value, n_bytes);
  });
}

KVEVICT_MOCK_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value,
                                           size_t n_words, CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  if (to % 4 != 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "misaligned");
  }
  return EnqueueAccess(call, stream, to, 4 * n_words, [=](uint8_t* bytes) {
    for (size_t i = 0; i < n_words; ++i) std::memcpy(bytes + 4 * i, &value, 4);
  });
}

}  // namespace kvevict::mock
