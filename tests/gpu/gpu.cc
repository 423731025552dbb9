#include "tests/gpu/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "cuda/device.h"

namespace kvevict::gpu {

using cuda::CUresult;
using cuda::Driver;

void Check(kvevict_status status) {
  if (status == KVEVICT_OK) return;
  throw std::runtime_error(fmt::format("{}: {}", kvevict_status_name(status),
                                       kvevict_last_error_message()));
}

void Check(const Driver& driver, CUresult result, const char* call) {
  if (result == cuda::CUDA_SUCCESS) return;
  throw std::runtime_error(
      fmt::format("{}: {}", call, cuda::ErrorName(driver, result)));
}

// ---- Gpu ----

Gpu::Gpu(const Libraries& libraries, cuda::CUcontext context,
         cuda::CUstream stream)
    : libraries_(libraries),
      context_(context),
      is_primary_(context == nullptr),
      stream_(stream) {
  Check(Driver::Open(libraries.libcuda.c_str(), &driver_).code());
  Check(driver(), driver().cuDeviceGet(&device_, 0), "cuDeviceGet");
  if (is_primary_) {
    Check(driver(), driver().cuDevicePrimaryCtxRetain(&context_, device_),
          "cuDevicePrimaryCtxRetain");
  }
  Check(driver(), driver().cuCtxPushCurrent(context_), "cuCtxPushCurrent");
  if (stream_ != nullptr) return;
  Check(driver(),
        driver().cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
        "cuStreamCreate");
}

Gpu::~Gpu() {
  cuda::CUcontext popped;
  (void)driver().cuStreamDestroy(stream_);
  (void)driver().cuCtxPopCurrent(&popped);
  if (is_primary_) (void)driver().cuDevicePrimaryCtxRelease(device_);
}

std::string Gpu::name() const {
  char name[96] = "";
  Check(driver(), driver().cuDeviceGetName(name, sizeof(name), device_),
        "cuDeviceGetName");
  return name;
}

int Gpu::sm() const {
  cuda::Device device;
  Check(cuda::GetDevice(driver(), 0, &device).code());
  return device.sm;
}

bool Gpu::ReadsProcessMemory() const {
  constexpr auto kPageableMemoryAccess =
      static_cast<cuda::CUdevice_attribute>(88);
  int reads = 0;
  Check(driver(),
        driver().cuDeviceGetAttribute(&reads, kPageableMemoryAccess, device_),
        "cuDeviceGetAttribute");
  return reads != 0;
}

kvevict_context_options Gpu::ContextOptions() const {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.device = KVEVICT_DEVICE_CUDA;
  options.cuda_context = context_;
  if (!libraries_.libcuda.empty()) {
    options.libcuda_path = libraries_.libcuda.c_str();
  }
  if (!libraries_.libnvrtc.empty()) {
    options.libnvrtc_path = libraries_.libnvrtc.c_str();
  }
  if (!libraries_.kernel_cache_dir.empty()) {
    options.kernel_cache_dir = libraries_.kernel_cache_dir.c_str();
  }
  return options;
}

void Gpu::Synchronize() const {
  Check(driver(), driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

double Gpu::Time(const std::function<void()>& work) const {
  cuda::CUevent begin;
  cuda::CUevent end;
  Check(driver(), driver().cuEventCreate(&begin, 0), "cuEventCreate");
  Check(driver(), driver().cuEventCreate(&end, 0), "cuEventCreate");
  Check(driver(), driver().cuEventRecord(begin, stream_), "cuEventRecord");
  work();
  Check(driver(), driver().cuEventRecord(end, stream_), "cuEventRecord");
  Check(driver(), driver().cuEventSynchronize(end), "cuEventSynchronize");
  float ms = 0;
  Check(driver(), driver().cuEventElapsedTime(&ms, begin, end),
        "cuEventElapsedTime");
  (void)driver().cuEventDestroy(begin);
  (void)driver().cuEventDestroy(end);
  return ms;
}

// ---- Buffer ----

Buffer::Buffer(const Gpu& gpu, size_t n_bytes) : gpu_(&gpu), n_bytes_(n_bytes) {
  if (n_bytes == 0) return;
  Check(gpu.driver(), gpu.driver().cuMemAlloc(&address_, n_bytes),
        "cuMemAlloc");
}

Buffer::~Buffer() {
  if (address_ != 0) (void)gpu_->driver().cuMemFree(address_);
}

void Buffer::Write(const void* host, size_t n_bytes, size_t offset) const {
  if (offset + n_bytes > n_bytes_) throw std::out_of_range("Buffer::Write");
  if (n_bytes == 0) return;
  // It runs on the stream that reads it, which waits for no other.
  Check(gpu_->driver(),
        gpu_->driver().cuMemcpyHtoDAsync(address_ + offset, host, n_bytes,
                                         gpu_->stream()),
        "cuMemcpyHtoDAsync");
  gpu_->Synchronize();
}

void Buffer::Read(void* host, size_t n_bytes, size_t offset) const {
  if (offset + n_bytes > n_bytes_) throw std::out_of_range("Buffer::Read");
  if (n_bytes == 0) return;
  Check(gpu_->driver(),
        gpu_->driver().cuMemcpyDtoHAsync(host, address_ + offset, n_bytes,
                                         gpu_->stream()),
        "cuMemcpyDtoHAsync");
  gpu_->Synchronize();
}

// ---- Streams ----

OtherStream::OtherStream(const Gpu& gpu, unsigned flags) : gpu_(gpu) {
  Check(gpu.driver(), gpu.driver().cuStreamCreate(&stream_, flags),
        "cuStreamCreate");
}

OtherStream::~OtherStream() { (void)gpu_.driver().cuStreamDestroy(stream_); }

void Order(const Gpu& gpu, cuda::CUstream first, cuda::CUstream second) {
  const Driver& driver = gpu.driver();
  cuda::CUevent event;
  Check(driver, driver.cuEventCreate(&event, 0), "cuEventCreate");
  Check(driver, driver.cuEventRecord(event, first), "cuEventRecord");
  Check(driver, driver.cuStreamWaitEvent(second, event, 0),
        "cuStreamWaitEvent");
  (void)driver.cuEventDestroy(event);  // freed when it has been reached
}

// ---- Graph ----

Graph::Graph(const Gpu& gpu, const std::function<void()>& queue) : gpu_(gpu) {
  const Driver& driver = gpu.driver();
  if (driver.cuGraphInstantiate == nullptr) {
    throw std::runtime_error("graphs want a driver of CUDA 11.4 or newer");
  }
  Check(driver,
        driver.cuStreamBeginCapture(gpu.stream(),
                                    cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");
  try {
    queue();
  } catch (...) {
    (void)driver.cuStreamEndCapture(gpu.stream(), &graph_);
    throw;
  }
  Check(driver, driver.cuStreamEndCapture(gpu.stream(), &graph_),
        "cuStreamEndCapture");
  Check(driver, driver.cuGraphInstantiate(&exec_, graph_, 0),
        "cuGraphInstantiate");
}

Graph::~Graph() {
  if (exec_ != nullptr) (void)gpu_.driver().cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) (void)gpu_.driver().cuGraphDestroy(graph_);
}

void Graph::Launch() const {
  Check(gpu_.driver(), gpu_.driver().cuGraphLaunch(exec_, gpu_.stream()),
        "cuGraphLaunch");
}

// ---- kvevict ----

constexpr std::array kRopeFrequencies = {
    1.0f,   0.77f,  0.6f,   0.46f,   0.36f,  0.28f,   0.22f,   0.17f,
    0.13f,  0.1f,   0.077f, 0.06f,   0.046f, 0.036f,  0.028f,  0.022f,
    0.017f, 0.013f, 0.01f,  0.0077f, 0.006f, 0.0046f, 0.0036f, 0.0028f};

ContextHandle CreateContext(const kvevict_context_options& options) {
  kvevict_context* context = nullptr;
  Check(kvevict_context_create(&options, &context));
  return ContextHandle(context);
}

uint32_t Geometry::n_rope_pairs() const {
  uint32_t n = kRopeFrequencies.size();
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (IsFull(l)) n = std::min(n, layer(l).k_head_dim / 2);
  }
  return n;
}

kvevict_geometry Geometry::Borrowed() const {
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = n_layers;
  g.max_tokens = max_tokens;
  g.layers = layers.data();
  g.layers_len = layers.size();
  g.rope_inv_freq = kRopeFrequencies.data();
  g.rope_inv_freq_len = n_rope_pairs();
  g.rope_layout = max_tokens % 2 == 0 ? KVEVICT_ROPE_LAYOUT_HALF
                                      : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  return g;
}

PlanHandle CreatePlan(const kvevict_context* context, const Geometry& geometry,
                      const oracle_policy& policy,
                      const kvevict_plan_options* options) {
  const kvevict_geometry g = geometry.Borrowed();
  const PolicyHandle handle = HandleOf(policy);
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &g, handle.get(), options, &plan));
  return PlanHandle(plan);
}

SequenceHandle CreateSequence(const kvevict_plan* plan) {
  kvevict_sequence* sequence = nullptr;
  Check(kvevict_sequence_create(plan, &sequence));
  SequenceHandle handle(sequence);
  Check(kvevict_sequence_begin_observing(sequence, nullptr, 0));
  return handle;
}

oracle_policy ParsePolicy(const std::string& text) {
  kvevict_policy* policy = nullptr;
  Check(kvevict_policy_create(text.c_str(), &policy));
  return oracle_policy_of(PolicyHandle(policy).get());
}

PolicyHandle HandleOf(const oracle_policy& policy) {
  PolicyHandle handle(oracle_policy_create(&policy));
  if (handle.get() == nullptr)
    throw std::runtime_error(kvevict_last_error_message());
  return handle;
}

kvevict_workspace WorkspaceOf(const kvevict_plan* plan,
                              kvevict_operation operation) {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan, operation, 0, &workspace));
  return workspace;
}

size_t WorkspaceBytes(const kvevict_plan* plan, kvevict_operation operation) {
  return WorkspaceOf(plan, operation).best_bytes;
}

kvevict_layer_info LayerOf(const kvevict_plan* plan, uint32_t layer) {
  kvevict_layer_info info{};
  info.struct_size = sizeof(info);
  Check(kvevict_plan_layer(plan, layer, &info));
  return info;
}

kvevict_evict_report ReportOf(const kvevict_sequence* sequence) {
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  Check(kvevict_sequence_report(sequence, &report, nullptr, 0));
  return report;
}

}  // namespace kvevict::gpu
