#include "tests/rig/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/rig/simt/sanitizer.h"

#if defined(__x86_64__)
// Saves what a call must preserve on the stack, stores the stack pointer in
// *from and goes on at `to`. (Floating-point control words never change here.)
extern "C" void KvevictSimtSwitch(void** from, void* to);
asm(R"(
.text
.type KvevictSimtSwitch,@function
KvevictSimtSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size KvevictSimtSwitch,.-KvevictSimtSwitch
)");
#endif

#ifdef KVEVICT_SIMT_TSAN
// Ends at once, without waiting a second for other threads.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() {
  return "halt_on_error=1:atexit_sleep_ms=0";
}
#endif

namespace kvevict::simt {
namespace {

// The function to call on a new stack, and the fiber that was left for it.
void (*pending_entry)();
void EnterStack() {
  pending_entry();
  std::abort();
}

}  // namespace

Fiber::Fiber() : is_program_(true) {
#ifdef KVEVICT_SIMT_TSAN
  sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(size_t stack_bytes) : stack_bytes_(stack_bytes) {
  // Running over the end of the stack hits the guard page.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  map_bytes_ = stack_bytes + page;
  map_ = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED || mprotect(map_, page, PROT_NONE) != 0) {
    std::perror("simt: no memory for a stack");
    std::abort();
  }
  stack_ = static_cast<char*>(map_) + page;
#ifdef KVEVICT_SIMT_TSAN
  sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (is_program_) return;
#ifdef KVEVICT_SIMT_TSAN
  __tsan_destroy_fiber(sanitizer_fiber_);
#endif
  munmap(map_, map_bytes_);
}

void Fiber::Start(void (*entry)()) {
  pending_entry = entry;  // the same for every fiber
#if defined(__x86_64__)
  // EnterStack expects what a call leaves: a return address (none) at a
  // multiple of 16 less 8. Below it is what the switch pops.
  auto* top = reinterpret_cast<uint64_t*>(stack_ + stack_bytes_);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(&EnterStack);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, &EnterStack, 0);
#endif
}

void Fiber::SwitchTo(Fiber& other) {
#ifdef KVEVICT_SIMT_TSAN
  __tsan_switch_to_fiber(other.sanitizer_fiber_,
                         __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
  KvevictSimtSwitch(&stack_pointer_, other.stack_pointer_);
#else
  swapcontext(&context_, &other.context_);
#endif
}

void Fiber::SetName([[maybe_unused]] const char* name) {
#ifdef KVEVICT_SIMT_TSAN
  __tsan_set_fiber_name(sanitizer_fiber_, name);
#endif
}

void Fiber::ReleaseFor([[maybe_unused]] void* address) {
#ifdef KVEVICT_SIMT_TSAN
  void* const self = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
  __tsan_release(address);
  __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#endif
}

}  // namespace kvevict::simt
