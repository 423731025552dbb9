// Tells the thread sanitizer about order. Does nothing in the plain build.
//
// KVEVICT_SIMT_TSAN comes from the build. The shim itself is not instrumented,
// since its own bookkeeping does not concern the kernels.
#ifndef KVEVICT_TESTS_RIG_SIMT_SANITIZER_H_
#define KVEVICT_TESTS_RIG_SIMT_SANITIZER_H_

#ifdef KVEVICT_SIMT_TSAN
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace kvevict::simt {

#ifdef KVEVICT_SIMT_TSAN

inline constexpr bool kFindsRaces = true;

// What was done before Release(address) comes before what follows Acquire.
inline void Release(void* address) { __tsan_release(address); }
inline void Acquire(void* address) { __tsan_acquire(address); }

// Within its scope malloc, free and memset do not count as the kernel's.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

#else

inline constexpr bool kFindsRaces = false;
inline void Release(void*) {}
inline void Acquire(void*) {}
struct Unseen {
  Unseen() {}
};

#endif

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_SANITIZER_H_
