// cp.async. The destination is poisoned when a copy is issued and written at
// the wait, so that reading it too early shows. Copies under way have no order, so
// a thread may not have two to one place.
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

constexpr uint8_t kPoison = 0xFF;  // NaN in every float type

void FailIfUnderWay(const std::vector<Lane::Copy>& group, const uint8_t* to,
                    uint32_t bytes) {
  for (const Lane::Copy& copy : group) {
    if (to < copy.to + copy.bytes && copy.to < to + bytes) {
      Fail("cp.async to where another one is under way");
    }
  }
}

void RunCopy(Lane& lane, const Instruction& i) {
  const uint64_t to =
      lane.Get<uint64_t>(i.slots[0]) + static_cast<uint64_t>(i.offsets[0]);
  const uint64_t from =
      lane.Get<uint64_t>(i.slots[1]) + static_cast<uint64_t>(i.offsets[1]);
  const auto bytes = lane.Get<uint32_t>(i.slots[2]);
  if (bytes != 16) Fail("cp.async of " + std::to_string(bytes) + " bytes");
  const uint32_t valid =
      i.counts[3] == 0 ? bytes : lane.Get<uint32_t>(i.slots[3]);
  if (valid != 0 && valid != bytes) Fail("cp.async of a part is not known");
  uint8_t* destination = lane.Store(i, Space::kShared, to, bytes).at;
  if (valid != 0) lane.Load(i, Space::kGlobal, from, bytes);
  for (const auto& group : lane.committed) {
    FailIfUnderWay(group, destination, bytes);
  }
  FailIfUnderWay(lane.issued, destination, bytes);
  std::memset(destination, kPoison, bytes);
  lane.issued.push_back({destination, from, valid, bytes});
}

void Complete(Lane& lane, const std::vector<Lane::Copy>& group) {
  for (const Lane::Copy& copy : group) {
    std::memset(copy.to, 0, copy.bytes);
    if (copy.valid_bytes == 0) continue;
    std::memcpy(copy.to,
                lane.block->grid.memory.At(copy.from, copy.valid_bytes),
                copy.valid_bytes);
  }
}

void RunCommit(Lane& lane, const Instruction&) {
  lane.committed.push_back(std::move(lane.issued));
  lane.issued.clear();
}

// Waits until at most the given number of groups is under way.
void RunWaitGroup(Lane& lane, const Instruction& i) {
  const auto allowed = lane.Get<uint32_t>(i.slots[0]);
  while (lane.committed.size() > allowed) {
    Complete(lane, lane.committed.front());
    lane.committed.erase(lane.committed.begin());
  }
}

void DecodeCopy(Modifiers& m, Instruction& i) {
  m.Expect("async");
  if (m.Take("commit_group")) {
    i.run = &RunCommit;
  } else if (m.Take("wait_group")) {
    if (i.counts[0] != 1) Fail("cp.async.wait_group needs a number");
    i.run = &RunWaitGroup;
  } else {
    m.Expect("cg");
    m.Expect("shared");
    m.Expect("global");
    if (i.counts[2] != 1) Fail("cp.async needs a size");
    i.run = &RunCopy;
  }
}

constexpr Opcode kAsyncCopyOpcodes[] = {{"cp", "?xxss", &DecodeCopy, 80}};

}  // namespace

std::span<const Opcode> AsyncCopyOpcodes() { return kAsyncCopyOpcodes; }

}  // namespace kvevict::ptx
