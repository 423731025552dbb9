#include "tests/rig/simt/thread.h"

#include <string>

#include "tests/rig/simt/machine.h"

namespace kvevict::simt {
namespace {

Thread& Self() { return *machine().running(); }

}  // namespace

const Dim3& ThreadIndex() { return Self().index; }
const Dim3& BlockIndex() { return Self().block->index; }
const Dim3& BlockSize() { return machine().block(); }
const Dim3& GridSize() { return machine().grid(); }
unsigned Lane() { return Self().linear % kWarpSize; }

void* SharedArray(const void* id, size_t bytes) {
  auto& arrays = Self().block->shared;
  for (const SharedArea& array : arrays) {
    if (array.id == id) return array.bytes;
  }
  return AddShared(*Self().block, id, bytes);
}

uint8_t* DynamicShared() {
  return reinterpret_cast<uint8_t*>(Self().block->shared.front().bytes);
}

void Fail(const char* text, const Site& site) {
  machine().set_error(Describe(Self()) + ": " + Describe(text, site));
  machine().Stop();
}

void CheckShared16(const void* p, const Site& site) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address % 16 != 0) Fail("shared memory not aligned to 16 bytes", site);
  for (const SharedArea& array : Self().block->shared) {
    const auto start = reinterpret_cast<uintptr_t>(array.bytes);
    if (address >= start && address + 16 <= start + array.n_bytes) return;
  }
  Fail("not shared memory", site);
}

void CheckAligned(uint64_t address, size_t bytes, const Site& site) {
  if (address % bytes != 0) Fail("misaligned address", site);
}

void Yield(const Site& site) { machine().GiveWay("SpinYield", site); }

void Preempt(Access access) {
  if (access == Access::kWrite) machine().NoteProgress();
  if (!machine().Chance(4)) return;
  machine().MakeReady(Self());
  machine().Suspend();
}

void AddCopy(void* shared, uint64_t address) {
  Thread& thread = Self();
  thread.copies.push_back({shared, address, thread.n_groups});
}

void CommitCopies() { ++Self().n_groups; }

bool TakeCopy(unsigned n_groups, Copy* copy) {
  Thread& thread = Self();
  if (thread.copies.empty() ||
      thread.copies.front().group + n_groups >= thread.n_groups) {
    return false;
  }
  *copy = thread.copies.front();
  thread.copies.erase(thread.copies.begin());
  return true;
}

}  // namespace kvevict::simt
