// Numbers drawn from bytes, and assertions that stop the program, for all fuzzers.
#ifndef KVEVICT_TESTS_FUZZ_FUZZ_H_
#define KVEVICT_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kvevict/kvevict.h"

// Each fuzzer defines this.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvevict {

#define FUZZ_CHECK(condition)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, \
                   #condition, kvevict_last_error_message());              \
      std::abort();                                                        \
    }                                                                      \
  } while (false)

// Draws numbers from bytes; zeros once they are used up.
class Draw {
 public:
  Draw(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint32_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint32_t Below(uint32_t n) { return (Byte() << 8 | Byte()) % n; }
  uint64_t Word() {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | Byte();
    return word;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_FUZZ_FUZZ_H_
