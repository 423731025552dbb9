// Streams, which do all work at once, and the graphs that they capture.
#include <utility>

#include "tests/rig/shim/driver.h"

namespace kvevict::shim {

CUresult Queue(CUstream stream, Work work) {
  if (stream == nullptr || stream != TheState().capturing) return work();
  TheState().captured.push_back(std::move(work));
  return CUDA_SUCCESS;
}

namespace {

template <typename Handle, typename T>
CUresult Create(Handle* out, T* object) {
  *out = reinterpret_cast<Handle>(object);
  return CUDA_SUCCESS;
}

template <typename T, typename Handle>
CUresult Destroy(Handle handle) {
  delete reinterpret_cast<T*>(handle);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Shim_cuStreamCreate(CUstream* out, unsigned) {
  return Create(out, new char);
}
CUresult Shim_cuStreamDestroy(CUstream stream) { return Destroy<char>(stream); }
CUresult Shim_cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }

CUresult Shim_cuEventCreate(CUevent* out, unsigned) {
  return Create(out, new char);
}
CUresult Shim_cuEventDestroy(CUevent event) { return Destroy<char>(event); }
CUresult Shim_cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult Shim_cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  return CUDA_SUCCESS;
}

CUresult Shim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* out) {
  *out = stream != nullptr && stream == TheState().capturing
             ? CU_STREAM_CAPTURE_STATUS_ACTIVE
             : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (TheState().capturing != nullptr) return kInvalidValue;
  TheState().capturing = stream;
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamEndCapture(CUstream stream, CUgraph* out) {
  if (stream != TheState().capturing) return kInvalidValue;
  TheState().capturing = nullptr;
  return Create(out, new Graph(std::exchange(TheState().captured, {})));
}

CUresult Shim_cuGraphInstantiate(CUgraphExec* out, CUgraph graph,
                                 unsigned long long) {
  return Create(out, new Graph(*reinterpret_cast<const Graph*>(graph)));
}
CUresult Shim_cuGraphLaunch(CUgraphExec graph, CUstream) {
  for (const Work& work : *reinterpret_cast<const Graph*>(graph)) {
    if (const CUresult result = work(); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult Shim_cuGraphExecDestroy(CUgraphExec graph) {
  return Destroy<Graph>(graph);
}
CUresult Shim_cuGraphDestroy(CUgraph graph) { return Destroy<Graph>(graph); }

}  // namespace kvevict::shim
