// The GPU as the tests use it: the driver, a context, a stream, memory.
#ifndef KVEVICT_TESTS_GPU_GPU_H_
#define KVEVICT_TESTS_GPU_GPU_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "kvevict/kvevict.h"
#include "tests/oracle/policy_values.h"

namespace kvevict::gpu {

// Throws std::runtime_error with kvevict's message, or the driver's.
void Check(kvevict_status status);
void Check(const cuda::Driver& driver, cuda::CUresult result, const char* call);

struct Libraries {
  std::string libcuda;           // "": the system's
  std::string libnvrtc;          // "": chosen by the driver's version
  std::string kernel_cache_dir;  // "": none
};

class Gpu {
 public:
  // Uses GPU 0's primary context or another one, which is current meanwhile, and
  // a stream of its own, or the given one, which it destroys.
  explicit Gpu(const Libraries& libraries, cuda::CUcontext context = nullptr,
               cuda::CUstream stream = nullptr);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const cuda::Driver& driver() const { return *driver_; }
  cuda::CUstream stream() const { return stream_; }
  const Libraries& libraries() const { return libraries_; }
  std::string name() const;
  int sm() const;
  // Whether kernels may read and write any memory of the process.
  bool ReadsProcessMemory() const;

  // Options of a kvevict context on this GPU.
  kvevict_context_options ContextOptions() const;

  void Synchronize() const;
  // Milliseconds on the stream.
  double Time(const std::function<void()>& work) const;

 private:
  Libraries libraries_;
  const cuda::Driver* driver_ = nullptr;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  bool is_primary_;
  cuda::CUstream stream_ = nullptr;
};

class Buffer {
 public:
  Buffer(const Gpu& gpu, size_t n_bytes);
  Buffer(Buffer&& other) noexcept
      : gpu_(other.gpu_),
        address_(std::exchange(other.address_, 0)),
        n_bytes_(other.n_bytes_) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  uint64_t address() const { return address_; }
  template <typename T>
  T* pointer() const {  // for the C API; not to be read here
    return reinterpret_cast<T*>(address_);
  }
  size_t n_bytes() const { return n_bytes_; }

  void Write(const void* host, size_t n_bytes, size_t offset = 0) const;
  void Read(void* host, size_t n_bytes, size_t offset = 0) const;
  template <typename T>
  std::vector<T> ReadAll() const {
    std::vector<T> host(n_bytes_ / sizeof(T));
    Read(host.data(), host.size() * sizeof(T));
    return host;
  }

 private:
  const Gpu* gpu_;
  cuda::CUdeviceptr address_ = 0;
  size_t n_bytes_;
};

// A stream beside the Gpu's own.
class OtherStream {
 public:
  explicit OtherStream(const Gpu& gpu,
                       unsigned flags = cuda::CU_STREAM_NON_BLOCKING);
  ~OtherStream();
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

  cuda::CUstream get() const { return stream_; }

 private:
  const Gpu& gpu_;
  cuda::CUstream stream_ = nullptr;
};

// Work queued on `second` from now on comes after the work on `first`.
void Order(const Gpu& gpu, cuda::CUstream first, cuda::CUstream second);

// Work that a stream captured, to be run again and again.
class Graph {
 public:
  // Work queued on the stream while `queue` runs is recorded, not run.
  Graph(const Gpu& gpu, const std::function<void()>& queue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Launch() const;

 private:
  const Gpu& gpu_;
  cuda::CUgraph graph_ = nullptr;
  cuda::CUgraphExec exec_ = nullptr;
};

// Owners of kvevict's handles.
template <typename T, void (*kDestroy)(T*)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T* handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() { kDestroy(handle_); }

  T* get() const { return handle_; }

 private:
  T* handle_ = nullptr;
};

inline void DestroyContext(kvevict_context* c) { kvevict_context_destroy(c); }
inline void DestroyPolicy(kvevict_policy* p) { kvevict_policy_destroy(p); }
inline void DestroyPlan(kvevict_plan* p) { kvevict_plan_destroy(p); }
inline void DestroySequence(kvevict_sequence* s) {
  kvevict_sequence_destroy(s);
}
using ContextHandle = Handle<kvevict_context, DestroyContext>;
using PolicyHandle = Handle<kvevict_policy, DestroyPolicy>;
using PlanHandle = Handle<kvevict_plan, DestroyPlan>;
using SequenceHandle = Handle<kvevict_sequence, DestroySequence>;

// A geometry with the layers that it borrows.
struct Geometry {
  uint32_t n_layers;
  uint32_t max_tokens;
  std::vector<kvevict_layer_geometry> layers;  // one for all, or one for each

  const kvevict_layer_geometry& layer(uint32_t l) const {
    return layers[layers.size() == 1 ? 0 : l];
  }
  bool IsFull(uint32_t l) const {
    return layer(l).cache == KVEVICT_LAYER_CACHE_FULL;
  }
  // The pairs of elements that RoPE rotates in every layer's keys.
  uint32_t n_rope_pairs() const;
  // Valid as long as this object does not change.
  kvevict_geometry Borrowed() const;
};

ContextHandle CreateContext(const kvevict_context_options& options);
PlanHandle CreatePlan(const kvevict_context* context, const Geometry& geometry,
                      const oracle_policy& policy,
                      const kvevict_plan_options* options = nullptr);
SequenceHandle CreateSequence(const kvevict_plan* plan);
oracle_policy ParsePolicy(const std::string& text);
// Throws unless the values can be combined.
PolicyHandle HandleOf(const oracle_policy& policy);
kvevict_workspace WorkspaceOf(const kvevict_plan* plan,
                              kvevict_operation operation);
// The best size of a workspace.
size_t WorkspaceBytes(const kvevict_plan* plan, kvevict_operation operation);
kvevict_layer_info LayerOf(const kvevict_plan* plan, uint32_t layer);
// The report of the last eviction.
kvevict_evict_report ReportOf(const kvevict_sequence* sequence);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_GPU_H_
