#include "tests/rig/ptx/memory.h"

#include <cstring>

#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {

uint64_t Memory::Allocate(size_t bytes) {
  constexpr uint64_t kAlignment = 256;
  const uint64_t address = next_;
  // The gap is at least one alignment, and as long as the block, so that an
  // index far off does not meet the neighbour.
  next_ += (2 * bytes + 2 * kAlignment) / kAlignment * kAlignment;
  Block block = {std::make_unique_for_overwrite<uint8_t[]>(bytes), bytes};
  std::memset(block.bytes.get(), 0xFF, bytes);
  blocks_.emplace(address, std::move(block));
  return address;
}

bool Memory::Free(uint64_t address) {
  last_size_ = 0;
  return blocks_.erase(address) != 0;
}

uint8_t* Memory::Find(uint64_t address, size_t bytes) {
  if (address - last_begin_ < last_size_ &&
      bytes <= last_size_ - (address - last_begin_)) {
    return last_bytes_ + (address - last_begin_);
  }
  constexpr uint64_t kNullPage = 4096;
  if (allows_host_ && address >= kNullPage && address < kFirstAddress) {
    return reinterpret_cast<uint8_t*>(address);
  }
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const uint64_t offset = address - block->first;
  const size_t size = block->second.size;
  if (offset > size || bytes > size - offset) return nullptr;
  last_begin_ = block->first;
  last_size_ = size;
  last_bytes_ = block->second.bytes.get();
  return last_bytes_ + offset;
}

uint8_t* Memory::At(uint64_t address, size_t bytes) {
  uint8_t* found = Find(address, bytes);
  if (found != nullptr) return found;
  std::string where = "in no allocation";
  auto block = blocks_.upper_bound(address);
  if (block != blocks_.begin()) {
    --block;
    where = "the allocation before is " + Hex(block->first) + " with " +
            std::to_string(block->second.size) + " bytes";
  }
  Fail("out of bounds: " + std::to_string(bytes) + " bytes at " + Hex(address) +
       "; " + where);
}

}  // namespace kvevict::ptx
