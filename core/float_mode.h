// The mode of floating-point arithmetic: rounding to nearest, denormal numbers
// kept, no traps. Hosts set other modes on some of their threads. Which tokens
// are kept must not depend on the thread that did the work.
#ifndef KVEVICT_CORE_FLOAT_MODE_H_
#define KVEVICT_CORE_FLOAT_MODE_H_

#include <cfenv>
#include <cstdint>

namespace kvevict {

// The register that holds a thread's mode. The compiler moves no memory access
// past a change of it.
#if defined(__x86_64__)
struct FloatModeRegister {  // MXCSR
  uint32_t mode;
  FloatModeRegister() { asm volatile("stmxcsr %0" : "=m"(mode)); }
  void Write(uint32_t value) const {
    asm volatile("ldmxcsr %0" ::"m"(value) : "memory");
  }
  static constexpr uint32_t kDefault = 0x1F80;
  // status flags, not part of the mode
  static constexpr uint32_t kFlags = 0x3F;
};
#elif defined(__aarch64__)
struct FloatModeRegister {  // FPCR
  uint64_t mode;
  FloatModeRegister() { asm volatile("mrs %0, fpcr" : "=r"(mode)); }
  void Write(uint64_t value) const {
    asm volatile("msr fpcr, %0" ::"r"(value) : "memory");
  }
  static constexpr uint64_t kDefault = 0;
  static constexpr uint64_t kFlags = 0;
};
#endif

// Sets the default mode while it lives, and restores the thread's own at the
// end.
class DefaultFloatMode {
 public:
#if defined(__x86_64__) || defined(__aarch64__)
  DefaultFloatMode() {
    if (IsForeign()) found_.Write(FloatModeRegister::kDefault);
  }
  ~DefaultFloatMode() {
    if (IsForeign()) found_.Write(found_.mode);
  }
#else
  DefaultFloatMode() {
    std::fegetenv(&found_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() { std::fesetenv(&found_); }
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__) || defined(__aarch64__)
  bool IsForeign() const {
    return (found_.mode & ~FloatModeRegister::kFlags) !=
           FloatModeRegister::kDefault;
  }
  const FloatModeRegister found_;
#else
  std::fenv_t found_;
#endif
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_FLOAT_MODE_H_
