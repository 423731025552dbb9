#include "core/memory/lent_memory.h"

#include "core/plan/plan.h"

namespace kvevict {

Status LentMemory::Begin(void* memory, size_t memory_bytes,
                         CheckedSize needed) {
  if (is_there_) {
    return InvalidArgument(
        "the sequence has query memory already: call "
        "kvevict_sequence_end_observing() first");
  }
  if (!needed.ok()) {
    return InvalidArgument("query memory: more bytes than size_t holds");
  }
  if (memory != nullptr) {
    KV_RETURN_IF_ERROR(
        CheckMemory("memory", context_, memory, memory_bytes, needed.value()));
  } else if (needed.value() > 0) {
    KV_RETURN_IF_ERROR(context_.query_memory().Take(
        context_, "query memory", needed.value(), &borrowed_));
    memory = borrowed_->memory;
  }
  data_ = static_cast<uint8_t*>(memory);
  is_there_ = true;
  return Status();
}

void LentMemory::End() {
  is_there_ = false;
  data_ = nullptr;
  if (borrowed_ == nullptr) return;
  context_.query_memory().GiveBack(borrowed_);
  borrowed_ = nullptr;
}

Status LentMemory::NotThere() {
  return InvalidArgument(
      "the sequence has no query memory: call "
      "kvevict_sequence_begin_observing() first");
}

}  // namespace kvevict
