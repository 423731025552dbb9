#include <string>
#include <vector>

#include "tests/rig/mock/mock.h"
#include "tests/rig/mock/state.h"

namespace kvevict::mock {
namespace {

std::unique_lock<std::mutex> Lock() {
  return std::unique_lock<std::mutex>(TheState().mutex);
}

}  // namespace

void Reset(const Settings& settings) {
  const auto lock = Lock();
  State& state = TheState();
  while (!state.contexts.empty()) {
    DestroyContext(state, state.contexts.begin()->first);
  }
  CurrentContexts().clear();
  ThreadCaptureMode() = kCaptureGlobal;
  state.libraries.clear();
  state.host_allocations.clear();
  state.primary = nullptr;
  state.primary_retained = 0;
  state.calls.clear();
  state.waits = 0;
  state.kernels_run = 0;
  state.failures.clear();
  state.kernel_failures.clear();
  state.counters.clear();
  state.problems.clear();
  state.settings = settings;
}

void FailCall(const char* function, uint64_t n, int result) {
  const auto lock = Lock();
  State& state = TheState();
  state.failures.push_back({function, state.calls[function] + n, result});
}

void FailKernel(uint64_t n, int result) {
  const auto lock = Lock();
  State& state = TheState();
  state.kernel_failures[state.kernels_run + n] = result;
}

void ForgetFailures() {
  const auto lock = Lock();
  TheState().failures.clear();
  TheState().kernel_failures.clear();
}

uint64_t Calls(const char* function) {
  const auto lock = Lock();
  return TheState().calls[function];
}

uint64_t Waits() {
  const auto lock = Lock();
  return TheState().waits;
}

uint64_t Launches(const char* kernel) {
  const auto lock = Lock();
  uint64_t sum = 0;
  for (const auto& [name, counters] : TheState().counters) {
    if (*kernel == '\0' || name == kernel) sum += counters.launches;
  }
  return sum;
}

uint64_t Pending() {
  const auto lock = Lock();
  uint64_t sum = 0;
  for (const auto& [handle, context] : TheState().contexts) {
    sum += context->pending.size();
  }
  return sum;
}

std::vector<std::string> Problems() {
  const auto lock = Lock();
  return TheState().problems;
}

void ClearProblems() {
  const auto lock = Lock();
  TheState().problems.clear();
}

std::vector<std::string> Leaks() {
  const auto lock = Lock();
  const State& state = TheState();
  std::vector<std::string> leaks;
  const auto add = [&](size_t n, const char* what) {
    if (n != 0) leaks.push_back(std::to_string(n) + " " + what);
  };
  size_t allocations = 0;
  for (const auto& [handle, context] : state.contexts) {
    allocations += context->allocations.size();
  }
  size_t modules = 0;
  for (const auto& [handle, module] : state.modules) {
    modules += module->of_library ? 0 : 1;
  }
  add(allocations, "allocations");
  add(state.host_allocations.size(), "host allocations");
  size_t streams = 0;
  for (const auto& [handle, stream] : state.streams) {
    streams += stream->default_of == std::thread::id() ? 1 : 0;
  }
  add(streams, "streams");
  add(state.events.size(), "events");
  add(modules, "modules");
  add(state.libraries.size(), "libraries");
  add(state.graphs.size(), "graphs");
  return leaks;
}

}  // namespace kvevict::mock
