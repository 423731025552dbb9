#include "core/memory/memory_pool.h"

#include "core/backend.h"
#include "core/context.h"

namespace kvevict {

MemoryPool::Block* MemoryPool::FindFit(size_t n_bytes) {
  const MutexLock lock(mutex_);
  Block** best = nullptr;
  for (Block** b = &first_; *b != nullptr; b = &(*b)->next) {
    if ((*b)->n_bytes < n_bytes) continue;
    if (best == nullptr || (*b)->n_bytes < (*best)->n_bytes) best = b;
  }
  if (best == nullptr) return nullptr;
  Block* const found = *best;
  *best = found->next;
  return found;
}

Status MemoryPool::Take(const Context& context, const char* what,
                        size_t n_bytes, Block** out) {
  *out = FindFit(n_bytes);
  if (*out != nullptr) return Status();
  // The record is allocated now, so that giving back needs no memory.
  Block* block = NewObject<Block>(context);
  if (block == nullptr)
    return OutOfMemory("%s: no memory for %zu bytes", what, n_bytes);
  *block = {nullptr, n_bytes, nullptr};
  if (Status status =
          context.backend().allocate(context, what, n_bytes, &block->memory);
      !status.ok()) {
    DeleteObject(context, block);
    return status;
  }
  *out = block;
  return Status();
}

void MemoryPool::GiveBack(Block* block) {
  const MutexLock lock(mutex_);
  block->next = first_;
  first_ = block;
}

void MemoryPool::Clear(const Context& context) {
  while (first_ != nullptr) {
    Block* const block = first_;
    first_ = block->next;
    context.backend().free(context, block->memory, block->n_bytes);
    context.Free(block, sizeof(Block), alignof(Block));
  }
}

}  // namespace kvevict
