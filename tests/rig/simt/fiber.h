// A thread of execution that only runs when it is told to.
//
// The switch is a few instructions on x86-64: swapcontext enters the kernel to
// save the signal mask.
#ifndef KVEVICT_TESTS_RIG_SIMT_FIBER_H_
#define KVEVICT_TESTS_RIG_SIMT_FIBER_H_

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace kvevict::simt {

class Fiber {
 public:
  // The stack that the program came with.
  Fiber();
  // A fiber with a stack of its own that is in no function yet.
  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next switch to this fiber calls entry(), which must not return.
  void Start(void (*entry)());

  // Switches from this fiber, which must be running, to `other`. Returns when
  // somebody switches back.
  void SwitchTo(Fiber& other);

 private:
  void* map_ = nullptr;  // the guard page, then the stack
  size_t map_bytes_ = 0;
  char* stack_ = nullptr;
  size_t stack_bytes_ = 0;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
  bool is_program_ = false;
};

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_FIBER_H_
