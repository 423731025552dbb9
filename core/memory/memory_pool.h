// Device memory that is lent for a while, and kept when it comes back.
#ifndef KVEVICT_CORE_MEMORY_MEMORY_POOL_H_
#define KVEVICT_CORE_MEMORY_MEMORY_POOL_H_

#include <cstddef>
#include <mutex>

#include "core/status.h"

namespace kvevict {

class Context;

// Of a context. Any thread may call.
class MemoryPool {
 public:
  struct Block {
    void* memory;
    size_t n_bytes;
    Block* next;
  };

  // The smallest block with so many bytes, or a new one; what is in it, nobody
  // knows. Aligned to 256.
  Status Take(const Context& context, const char* what, size_t n_bytes,
              Block** out);
  void GiveBack(Block* block);
  // Frees what came back.
  void Clear(const Context& context);

 private:
  Block* FindFit(size_t n_bytes);

  std::mutex mutex_;
  Block* first_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_MEMORY_MEMORY_POOL_H_
