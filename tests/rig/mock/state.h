// The mock driver's state, and the checks that every call makes first.
#ifndef KVEVICT_TESTS_RIG_MOCK_STATE_H_
#define KVEVICT_TESTS_RIG_MOCK_STATE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/rig/mock/api.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/mock/queue.h"
#include "tests/rig/ptx/counters.h"
#include "tests/rig/ptx/memory.h"
#include "tests/rig/ptx/module.h"

namespace kvevict::mock {

enum class Capture { kNone = 0, kActive = 1, kInvalidated = 2 };
enum CaptureMode { kCaptureGlobal = 0, kCaptureThreadLocal, kCaptureRelaxed };

struct Graph {
  Context* context;
  std::vector<Work> nodes;
};

struct Stream {
  Context* context;
  bool blocking = false;  // takes turns with the legacy default stream
  std::thread::id default_of = {};  // CU_STREAM_PER_THREAD of this one
  Capture capture = Capture::kNone;
  int capture_mode = kCaptureGlobal;
  std::thread::id capture_thread;
  std::vector<Work> captured;
};

inline bool IsBlocking(const Stream* stream) {
  return stream != nullptr && stream->blocking;
}

struct Event {
  Context* context;
  double milliseconds = -1.0;  // when it was reached; -1: not yet
  uint64_t step = 0;           // of the queue; 0: not recorded
};

// PTX text, loaded into contexts.
struct Library {
  std::string ptx;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::map<Context*, Module*> modules;  // one per context that used it
};
struct Kernel {
  Library* library;
  std::string name;
};

struct Function {
  Context* context;
  const ptx::Kernel* kernel;
  uint64_t dynamic_shared_limit;
};

struct Module {
  Context* context;
  bool of_library = false;
  std::shared_ptr<const ptx::Module> code;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Context {
  CUdevice device;
  bool primary = false;
  CUresult lost = CUDA_SUCCESS;  // every later call returns it
  ptx::Memory memory;
  std::map<CUdeviceptr, size_t> allocations;
  Queue pending;
};

struct Failure {
  std::string function;
  uint64_t at_call;
  CUresult result;
};

template <class T>
using Objects = std::map<T*, std::unique_ptr<T>>;

struct State {
  std::mutex mutex;
  bool initialised = false;
  Settings settings;
  uint64_t primary_retained = 0;
  Context* primary = nullptr;

  Objects<Context> contexts;
  Objects<Stream> streams;
  Objects<Event> events;
  Objects<Module> modules;
  Objects<Library> libraries;
  Objects<Graph> graphs;
  std::map<void*, std::unique_ptr<uint8_t[]>> host_allocations;

  std::map<std::string, uint64_t> calls;
  uint64_t waits = 0;
  uint64_t kernels_run = 0;
  std::vector<Failure> failures;
  std::map<uint64_t, CUresult> kernel_failures;  // by number of the kernel
  std::map<std::string, ptx::Counters> counters;
  std::vector<std::string> problems;
};

State& TheState();

Context* NewContext(State& state, CUdevice device);
// Made when it is first asked for.
Context* Primary(State& state);

// Contexts of this thread, the current one last.
std::vector<Context*>& CurrentContexts();
// How captures treat this thread's unsafe calls.
int& ThreadCaptureMode();

template <class T>
T* Find(const Objects<T>& objects, T* handle) {
  const auto found = objects.find(handle);
  return found == objects.end() ? nullptr : found->second.get();
}

template <class T>
T* Keep(Objects<T>& objects, std::unique_ptr<T> object) {
  T* handle = object.get();
  objects.emplace(handle, std::move(object));
  return handle;
}

// A function needs these beside cuInit.
enum Needs : unsigned {
  kNothing = 0,
  kBeforeInit = 1,  // works before cuInit
  kContext = 2,     // a current context, that is not lost
  kUnsafe = 4,      // not while a stream is captured in global mode
  kWaits = 8        // runs what is pending in the current context
};

// Opens every function: locks the state, counts the call, checks the needs and
// the failures on demand. The function goes on if `result` is CUDA_SUCCESS.
class Call {
 public:
  explicit Call(const char* function, unsigned needs = kNothing);

  State& state;
  Context* context = nullptr;  // the current one
  CUresult result = CUDA_SUCCESS;

  // Notes a problem, "function: what", and returns the result to return.
  CUresult Misuse(CUresult misuse, const std::string& what);

  // Finds the stream for this call; the legacy default stream becomes NULL. It
  // is misuse if the stream is unknown or another context's.
  CUresult FindStream(CUstream handle, Stream** out);
  // Appends to the stream, or to its capture: then there is no step yet.
  CUresult Enqueue(CUstream handle, Work work, uint64_t* out_step = nullptr);

 private:
  CUresult CheckFailures();
  CUresult CheckCaptures();
  CUresult CheckLegacyStream();
  Stream* PerThreadStream();

  std::unique_lock<std::mutex> lock_;
  std::string function_;
};

// Runs pending work of all streams, or what one waits for (NULL: the legacy default
// stream). The first result that is not success ends the context.
CUresult Drain(Context& context);
CUresult Drain(Context& context, const Stream* stream);

// Shared memory that a block may ask for on a device, in bytes.
int SharedBytesOptIn(int compute_capability);

bool EndsContext(CUresult result);
// Destroys all that belongs to the context.
void DestroyContext(State& state, Context* context);

}  // namespace kvevict::mock

// First line of a function: returns unless the call may go on.
#define KVEVICT_MOCK_CALL(needs)                         \
  ::kvevict::mock::Call call(__func__, (needs));         \
  do {                                                   \
    if (call.result != CUDA_SUCCESS) return call.result; \
  } while (false)

#endif  // KVEVICT_TESTS_RIG_MOCK_STATE_H_
