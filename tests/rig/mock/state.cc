#include "tests/rig/mock/state.h"

namespace kvevict::mock {

State& TheState() {
  static State* state = new State();  // outlives other static objects
  return *state;
}

std::vector<Context*>& CurrentContexts() {
  thread_local std::vector<Context*> stack;
  return stack;
}

int& ThreadCaptureMode() {
  thread_local int mode = kCaptureGlobal;
  return mode;
}

bool EndsContext(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

namespace {

CUresult End(Context& context, CUresult result) {
  context.lost = result;
  if (result != CUDA_SUCCESS) context.pending.clear();
  return result;
}

}  // namespace

CUresult Drain(Context& context) {
  if (context.lost != CUDA_SUCCESS) return context.lost;
  return End(context, context.pending.RunAll());
}

CUresult Drain(Context& context, const Stream* stream) {
  if (context.lost != CUDA_SUCCESS) return context.lost;
  return End(context, context.pending.Run(stream, IsBlocking(stream)));
}

void DestroyContext(State& state, Context* context) {
  const auto drop = [context](auto& objects) {
    std::erase_if(objects, [context](const auto& entry) {
      return entry.second->context == context;
    });
  };
  drop(state.streams);
  drop(state.events);
  drop(state.graphs);
  drop(state.modules);  // before the memory of their variables
  for (auto& [handle, library] : state.libraries) {
    library->modules.erase(context);
  }
  state.contexts.erase(context);
}

Context* NewContext(State& state, CUdevice device) {
  auto context = std::make_unique<Context>();
  context->device = device;
  if (state.settings.host_memory) context->memory.AllowHostAddresses();
  return Keep(state.contexts, std::move(context));
}

Context* Primary(State& state) {
  if (state.primary == nullptr) {
    state.primary = NewContext(state, 0);
    state.primary->primary = true;
  }
  return state.primary;
}

Call::Call(const char* function, unsigned needs)
    : state(TheState()), lock_(state.mutex), function_(function) {
  ++state.calls[function_];
  if (!state.initialised && (needs & kBeforeInit) == 0) {
    result = Misuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
    return;
  }
  if (!CurrentContexts().empty()) {
    context = CurrentContexts().back();
  } else if (state.settings.host_memory) {
    context = Primary(state);
  }
  if ((needs & kContext) != 0) {
    if (Find(state.contexts, context) == nullptr) {
      result = Misuse(CUDA_ERROR_INVALID_CONTEXT,
                      context == nullptr ? "no context is current"
                                         : "the current context is destroyed");
      return;
    }
    result = context->lost;
  }
  if (result == CUDA_SUCCESS) result = CheckFailures();
  if (result == CUDA_SUCCESS && (needs & kUnsafe) != 0)
    result = CheckCaptures();
  if (result == CUDA_SUCCESS && (needs & kWaits) != 0) {
    ++state.waits;
    result = Drain(*context);
  }
}

CUresult Call::Misuse(CUresult misuse, const std::string& what) {
  state.problems.push_back(function_ + ": " + what);
  return misuse;
}

CUresult Call::CheckFailures() {
  for (const Failure& failure : state.failures) {
    if (failure.function != function_ ||
        failure.at_call != state.calls[function_]) {
      continue;
    }
    if (EndsContext(failure.result) && context != nullptr) {
      context->lost = failure.result;
    }
    return failure.result;
  }
  return CUDA_SUCCESS;
}

// A capture in global mode forbids unsafe calls to all threads, in thread-local
// mode to its own; a thread in relaxed mode may make them.
CUresult Call::CheckCaptures() {
  if (ThreadCaptureMode() == kCaptureRelaxed) return CUDA_SUCCESS;
  for (auto& [handle, stream] : state.streams) {
    if (stream->capture != Capture::kActive) continue;
    const bool own = stream->capture_thread == std::this_thread::get_id();
    if (stream->capture_mode == kCaptureRelaxed ||
        (stream->capture_mode == kCaptureThreadLocal && !own) ||
        (ThreadCaptureMode() == kCaptureThreadLocal && !own)) {
      continue;
    }
    stream->capture = Capture::kInvalidated;
    return Misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "not while a stream is captured");
  }
  return CUDA_SUCCESS;
}

// The legacy default stream waits for all blocking streams of its context, which
// a captured one does not allow.
CUresult Call::CheckLegacyStream() {
  for (auto& [handle, stream] : state.streams) {
    if (stream->context != context || !stream->blocking ||
        stream->capture != Capture::kActive) {
      continue;
    }
    stream->capture = Capture::kInvalidated;
    return Misuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "the legacy default stream while a stream is captured");
  }
  return CUDA_SUCCESS;
}

// Every context and thread has one from the beginning.
Stream* Call::PerThreadStream() {
  const std::thread::id thread = std::this_thread::get_id();
  for (auto& [handle, stream] : state.streams) {
    if (stream->context == context && stream->default_of == thread) {
      return handle;
    }
  }
  auto stream = std::make_unique<Stream>();
  stream->context = context;
  stream->blocking = true;
  stream->default_of = thread;
  return Keep(state.streams, std::move(stream));
}

CUresult Call::FindStream(CUstream handle, Stream** out) {
  *out = nullptr;
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) return CheckLegacyStream();  // NULL, CU_STREAM_LEGACY
  // CU_STREAM_PER_THREAD
  *out = number == 2 ? PerThreadStream() : Find(state.streams, handle);
  if (*out == nullptr && state.settings.host_memory) {
    auto& made = state.streams[handle] = std::make_unique<Stream>();
    made->context = context;
    *out = made.get();
  }
  if (*out == nullptr) {
    return Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown stream");
  }
  if ((*out)->context != context) {
    return Misuse(CUDA_ERROR_INVALID_HANDLE, "a stream of another context");
  }
  return CUDA_SUCCESS;
}

CUresult Call::Enqueue(CUstream handle, Work work, uint64_t* out_step) {
  Stream* stream = nullptr;
  const CUresult found = FindStream(handle, &stream);
  if (found != CUDA_SUCCESS) return found;
  if (stream == nullptr || stream->capture == Capture::kNone) {
    const uint64_t step =
        context->pending.Push(stream, IsBlocking(stream), std::move(work));
    if (out_step != nullptr) *out_step = step;
    return state.settings.host_memory ? Drain(*context) : CUDA_SUCCESS;
  }
  if (stream->capture == Capture::kInvalidated) {
    return Misuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "the stream's capture is invalid");
  }
  stream->captured.push_back(std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
