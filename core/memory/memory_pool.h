// Device memory that is lent for a while and kept for reuse when it comes back.
#ifndef KVEVICT_CORE_MEMORY_MEMORY_POOL_H_
#define KVEVICT_CORE_MEMORY_MEMORY_POOL_H_

#include <cstddef>

#include "core/mutex.h"
#include "core/status.h"

namespace kvevict {

class Context;

// The pool of a context. Any thread may call.
class MemoryPool {
 public:
  struct Block {
    void* memory;
    size_t n_bytes;
    Block* next;
  };

  // Returns the smallest block with at least n_bytes, or a new one. Its content
  // is undefined. Aligned to 256 bytes.
  Status Take(const Context& context, const char* what, size_t n_bytes,
              Block** out);
  void GiveBack(Block* block);
  // Frees the blocks that came back.
  void Clear(const Context& context);

 private:
  Block* FindFit(size_t n_bytes);

  Mutex mutex_;
  Block* first_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_MEMORY_MEMORY_POOL_H_
