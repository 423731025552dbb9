// Streams, captures, graphs, events.
#include <utility>

#include "tests/rig/mock/state.h"

namespace kvevict::mock {

namespace {

constexpr unsigned kNonBlocking = 1;

}  // namespace

// ---- Streams ----

KVEVICT_MOCK_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  KVEVICT_MOCK_CALL(kContext);
  auto stream = std::make_unique<Stream>();
  stream->context = call.context;
  stream->blocking = (flags & kNonBlocking) == 0;
  *out = Keep(call.state.streams, std::move(stream));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuStreamDestroy_v2(CUstream stream) {
  KVEVICT_MOCK_CALL(kNothing);
  if (call.state.streams.erase(stream) == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown stream");
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuStreamSynchronize(CUstream handle) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  Stream* stream = nullptr;
  const CUresult found = call.FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  if (stream != nullptr && stream->capture != Capture::kNone) {
    stream->capture = Capture::kInvalidated;
    return call.Misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       "the stream is captured");
  }
  ++call.state.waits;
  return Drain(*call.context, stream);
}

// ---- Captures ----

KVEVICT_MOCK_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  KVEVICT_MOCK_CALL(kContext);
  Stream* stream = nullptr;
  const CUresult found = call.FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  if (stream == nullptr) {
    return call.Misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       "the legacy default stream cannot be captured");
  }
  if (stream->capture != Capture::kNone) {
    return call.Misuse(CUDA_ERROR_ILLEGAL_STATE, "captured already");
  }
  stream->capture = Capture::kActive;
  stream->capture_mode = mode;
  stream->capture_thread = std::this_thread::get_id();
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  KVEVICT_MOCK_CALL(kContext);
  *out = nullptr;
  Stream* stream = nullptr;
  const CUresult found = call.FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  if (stream == nullptr || stream->capture == Capture::kNone) {
    return call.Misuse(CUDA_ERROR_ILLEGAL_STATE, "not captured");
  }
  if (stream->capture_mode != kCaptureRelaxed &&
      stream->capture_thread != std::this_thread::get_id()) {
    return call.Misuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                       "another thread began the capture");
  }
  std::vector<Work> nodes;
  nodes.swap(stream->captured);
  const Capture capture = std::exchange(stream->capture, Capture::kNone);
  if (capture == Capture::kInvalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  auto graph = std::make_unique<Graph>();
  graph->context = call.context;
  graph->nodes = std::move(nodes);
  *out = Keep(call.state.graphs, std::move(graph));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuStreamIsCapturing(CUstream handle, int* out) {
  KVEVICT_MOCK_CALL(kContext);
  if (reinterpret_cast<uintptr_t>(handle) <= 1) {
    // Asking is no misuse, and leaves the capture as it is.
    for (const auto& [key, stream] : call.state.streams) {
      if (stream->context == call.context && stream->blocking &&
          stream->capture == Capture::kActive) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
    }
  }
  Stream* stream = nullptr;
  const CUresult found = call.FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  *out = stream == nullptr ? 0 : static_cast<int>(stream->capture);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuThreadExchangeStreamCaptureMode(int* in_out) {
  KVEVICT_MOCK_CALL(kNothing);
  std::swap(ThreadCaptureMode(), *in_out);
  return CUDA_SUCCESS;
}

// ---- Graphs ----

KVEVICT_MOCK_API CUresult cuGraphInstantiateWithFlags(
    CUgraphExec* out, CUgraph handle, unsigned long long /*flags*/) {
  KVEVICT_MOCK_CALL(kContext);
  const Graph* graph = Find(call.state.graphs, handle);
  if (graph == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown graph");
  }
  *out = Keep(call.state.graphs, std::make_unique<Graph>(*graph));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  const Graph* graph = Find(call.state.graphs, handle);
  if (graph == nullptr || graph->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown graph");
  }
  for (const Work& node : graph->nodes) {
    const CUresult result = call.Enqueue(stream, node);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

namespace {

CUresult DestroyGraph(Call& call, Graph* graph) {
  if (call.state.graphs.erase(graph) == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown graph");
  }
  return CUDA_SUCCESS;
}

}  // namespace

KVEVICT_MOCK_API CUresult cuGraphExecDestroy(CUgraphExec graph) {
  KVEVICT_MOCK_CALL(kNothing);
  return DestroyGraph(call, graph);
}

KVEVICT_MOCK_API CUresult cuGraphDestroy(CUgraph graph) {
  KVEVICT_MOCK_CALL(kNothing);
  return DestroyGraph(call, graph);
}

// ---- Events: time is the number of steps that have run ----

KVEVICT_MOCK_API CUresult cuEventCreate(CUevent* out, unsigned /*flags*/) {
  KVEVICT_MOCK_CALL(kContext);
  auto event = std::make_unique<Event>();
  event->context = call.context;
  *out = Keep(call.state.events, std::move(event));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuEventDestroy_v2(CUevent event) {
  KVEVICT_MOCK_CALL(kNothing);
  if (call.state.events.erase(event) == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown event");
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuEventRecord(CUevent handle, CUstream stream) {
  KVEVICT_MOCK_CALL(kContext);
  Event* event = Find(call.state.events, handle);
  if (event == nullptr || event->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown event");
  }
  State& state = call.state;
  return call.Enqueue(
      stream,
      [&state, event]() -> CUresult {
        if (Find(state.events, event) != nullptr) {
          event->milliseconds = static_cast<double>(state.kernels_run);
        }
        return CUDA_SUCCESS;
      },
      &event->step);
}

KVEVICT_MOCK_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event,
                                            unsigned /*flags*/) {
  KVEVICT_MOCK_CALL(kContext);
  const Event* awaited = Find(call.state.events, event);
  if (awaited == nullptr || awaited->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown event");
  }
  Stream* stream = nullptr;
  const CUresult found = call.FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  if (stream != nullptr && stream->capture != Capture::kNone) {
    return call.Misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       "the mock's captures know no events");
  }
  call.context->pending.PushWait(stream, IsBlocking(stream), awaited->step);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuEventSynchronize(CUevent handle) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  if (Find(call.state.events, handle) == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown event");
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuEventElapsedTime(float* out, CUevent from,
                                             CUevent to) {
  KVEVICT_MOCK_CALL(kContext);
  const Event* first = Find(call.state.events, from);
  const Event* second = Find(call.state.events, to);
  if (first == nullptr || second == nullptr || first->milliseconds < 0.0 ||
      second->milliseconds < 0.0) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "an event is not recorded");
  }
  *out = static_cast<float>(second->milliseconds - first->milliseconds);
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
