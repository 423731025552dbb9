// Device memory in which a sequence keeps what it observes. It belongs to the
// caller or the context.
#ifndef KVEVICT_CORE_MEMORY_LENT_MEMORY_H_
#define KVEVICT_CORE_MEMORY_LENT_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/context.h"
#include "core/memory/memory_pool.h"
#include "core/status.h"

namespace kvevict {

class LentMemory {
 public:
  explicit LentMemory(const Context& context) : context_(context) {}
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  ~LentMemory() { End(); }

  // Uses the caller's memory until End(). NULL: allocates from the context.
  Status Begin(void* memory, size_t memory_bytes, CheckedSize needed);
  void End();
  Status CheckIsThere() const { return is_there_ ? Status() : NotThere(); }
  bool is_there() const { return is_there_; }
  uint8_t* data() const { return data_; }

 private:
  static Status NotThere();

  const Context& context_;
  bool is_there_ = false;
  uint8_t* data_ = nullptr;
  MemoryPool::Block* borrowed_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_MEMORY_LENT_MEMORY_H_
