// Device memory: allocations at addresses that no host pointer has, far apart
// and never given twice. So uses of freed memory or past an end are noticed.
#ifndef KVEVICT_TESTS_RIG_PTX_MEMORY_H_
#define KVEVICT_TESTS_RIG_PTX_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace kvevict::ptx {

class Memory {
 public:
  // This is above every address that a host process can have.
  static constexpr uint64_t kFirstAddress = uint64_t{1} << 56;

  // Memory is at least 256-byte aligned and filled with 0xFF: NaN, and no valid index.
  uint64_t Allocate(size_t bytes);
  // False if no living allocation begins there.
  bool Free(uint64_t address);
  // Lets host addresses count as device addresses, unchecked. Tests that keep
  // kernels' memory in vectors need this.
  void AllowHostAddresses() { allows_host_ = true; }

  // The bytes, or NULL if they do not lie within one allocation.
  uint8_t* Find(uint64_t address, size_t bytes);
  // The same, but throws Error.
  uint8_t* At(uint64_t address, size_t bytes);

 private:
  struct Block {
    std::unique_ptr<uint8_t[]> bytes;
    size_t size;
  };
  std::map<uint64_t, Block> blocks_;
  uint64_t next_ = kFirstAddress;
  bool allows_host_ = false;
  // The last hit: most accesses go to the same allocation as the one before.
  uint64_t last_begin_ = 0;
  size_t last_size_ = 0;
  uint8_t* last_bytes_ = nullptr;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_MEMORY_H_
