#include "tests/rig/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

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

namespace kvevict::simt {
namespace {

// The function to call on a new stack, and the fiber that was left for it.
void (*pending_entry)();
void EnterStack() {
  pending_entry();
  std::abort();
}

}  // namespace

Fiber::Fiber() : is_program_(true) {}

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
}

Fiber::~Fiber() {
  if (is_program_) return;
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
#if defined(__x86_64__)
  KvevictSimtSwitch(&stack_pointer_, other.stack_pointer_);
#else
  swapcontext(&context_, &other.context_);
#endif
}

}  // namespace kvevict::simt
