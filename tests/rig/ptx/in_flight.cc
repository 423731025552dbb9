#include "tests/rig/ptx/in_flight.h"

#include <algorithm>
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/lane.h"

namespace kvevict::ptx {
namespace {

// None, few, or so many that hardly one is performed before it must be.
constexpr uint32_t kCapacities[] = {0, 8, 256, 4096};

bool Overlap(const PendingAccess& a, const uint8_t* at, uint32_t bytes) {
  return a.at < at + bytes && at < a.at + a.bytes;
}

}  // namespace

void PerformStore(const PendingAccess& a) {
  std::memcpy(a.at, a.operands, a.bytes);
}

InFlight::InFlight(std::mt19937_64& random)
    : capacity_(kCapacities[random() % std::size(kCapacities)]),
      random_(random),
      buckets_(kBuckets, kNone),
      snapshots_(1) {
  accesses_.reserve(capacity_);
}

Mark InFlight::MarkOf(const Lane& lane) {
  return {lane.block->index(), lane.thread, lane.block->generation(),
          next_serial_++};
}

// ---- The list ----

uint16_t InFlight::Take() {
  if (free_.empty() && accesses_.size() < capacity_) {
    accesses_.emplace_back();
    return static_cast<uint16_t>(accesses_.size() - 1);
  }
  if (free_.empty()) PerformOne();
  const uint16_t id = free_.back();
  free_.pop_back();
  return id;
}

void InFlight::Link(uint16_t id) {
  PendingAccess& access = accesses_[id];
  uint16_t& bucket = buckets_[Bucket(access.at)];
  access.next = bucket;
  bucket = id;
  access.place = static_cast<uint16_t>(living_.size());
  living_.push_back(id);
}

void InFlight::Unlink(uint16_t id) {
  const PendingAccess& access = accesses_[id];
  uint16_t* link = &buckets_[Bucket(access.at)];
  while (*link != id) link = &accesses_[*link].next;
  *link = access.next;
  living_[access.place] = living_.back();
  accesses_[living_.back()].place = access.place;
  living_.pop_back();
  free_.push_back(id);
}

template <class Choose>
void InFlight::PerformIf(Choose choose) {
  for (size_t k = living_.size(); k-- > 0;) {
    if (choose(accesses_[living_[k]])) Perform(living_[k]);
  }
}

// ---- Issue ----

uint32_t InFlight::KnownTo(const Lane& lane) {
  const Knowledge& of_block = lane.block->known();
  if (lane.known.empty() && of_block.empty()) return 0;
  snapshots_.push_back(of_block);
  snapshots_.back().Add(lane.known);
  return static_cast<uint32_t>(snapshots_.size() - 1);
}

void InFlight::Add(Lane& lane, PendingAccess& access) {
  access.mark = MarkOf(lane);
  const Instruction& i = *access.instruction;
  if (access.kind != AccessKind::kLoad && Releases(i.order)) {
    access.releases = true;
    access.known = KnownTo(lane);
  }
  // A flag is often seen long before the data that it guards.
  const bool is_flag = IsStrong(i.order) && random_() % 2 == 0;
  const bool acquires = access.kind == AccessKind::kAtomic && Acquires(i.order);
  if (capacity_ == 0 || acquires || is_flag) {
    PerformNow(access);
    return;
  }
  const uint16_t id = Take();
  if (access.lane != nullptr) {
    ++lane.n_awaited;
    for (int k = 0; k < i.counts[0]; ++k) lane.awaited[i.slots[k]] = id + 1;
  }
  accesses_[id] = access;
  Link(id);
}

void InFlight::AddTorn(Lane& lane, PendingAccess& access) {
  uint8_t* const at = access.at;
  uint8_t word[8];
  std::memcpy(word, at, access.bytes);
  access.at = word;
  access.perform(access);
  NoteStrongRead(lane, at, access.instruction->order,
                 access.instruction->scope);
  std::memcpy(access.operands, word, access.bytes);
  access.at = at;
  access.perform = &PerformStore;
  access.lane = nullptr;
  access.kind = AccessKind::kStore;
  Add(lane, access);
}

// ---- Performing ----

void InFlight::Perform(uint16_t id) {
  const PendingAccess& access = accesses_[id];
  Unlink(id);
  if (access.lane != nullptr) {
    --access.lane->n_awaited;
    const Instruction& i = *access.instruction;
    for (int k = 0; k < i.counts[0]; ++k) access.lane->awaited[i.slots[k]] = 0;
  }
  PerformNow(access);
}

void InFlight::PerformNow(const PendingAccess& access) {
  access.perform(access);
  if (access.kind == AccessKind::kAtomic && access.lane != nullptr) {
    const Instruction& i = *access.instruction;
    NoteStrongRead(*access.lane, access.at, i.order, i.scope);
  }
  if (access.kind != AccessKind::kLoad) NoteWrite(access);
}

// An atomic passes on what the value that it has read carried. A strong store
// passes on what its own thread released before.
void InFlight::NoteWrite(const PendingAccess& access) {
  if (!access.releases && released_.empty()) return;
  std::vector<Release>& carried = released_[access.at];
  if (access.kind == AccessKind::kStore) {
    const bool strong = IsStrong(access.instruction->order);
    std::erase_if(carried, [&](const Release& r) {
      return !strong || r.mark.block != access.mark.block ||
             r.mark.thread != access.mark.thread;
    });
  }
  if (access.releases) {
    carried.push_back({access.mark, access.instruction->scope, access.known});
  }
  if (carried.empty()) released_.erase(access.at);
}

void InFlight::PerformBefore(const Mark& mark) {
  PerformIf([&](const PendingAccess& a) { return ComesBefore(a.mark, mark); });
}

void InFlight::SettleBucket(const Lane& lane, const uint8_t* at, uint32_t bytes,
                            bool is_store) {
  const Mark now = {lane.block->index(), lane.thread, lane.block->generation(),
                    next_serial_};
  for (uint16_t id = buckets_[Bucket(at)]; id != kNone;) {
    const PendingAccess& a = accesses_[id];
    const uint16_t next = a.next;
    if (Overlap(a, at, bytes) && (is_store || a.kind != AccessKind::kLoad) &&
        ComesBefore(a.mark, now)) {
      Perform(id);
    }
    id = next;
  }
}

void InFlight::Await(Lane& lane, const Instruction& i) {
  for (int k = 0; k < i.n_slots; ++k) {
    const uint16_t id = lane.awaited[i.slots[k]];
    if (id != 0) Perform(id - 1);
  }
}

void InFlight::Abandon(Lane& lane) {
  const size_t n_registers = lane.block->grid.kernel.registers.size();
  for (size_t k = 0; k < n_registers; ++k) {
    if (lane.awaited[k] == 0) continue;
    PendingAccess& access = accesses_[lane.awaited[k] - 1];
    lane.awaited[k] = 0;
    if (access.kind == AccessKind::kLoad && access.lane != nullptr) {
      Unlink(static_cast<uint16_t>(&access - accesses_.data()));
    }
    access.lane = nullptr;
  }
  lane.n_awaited = 0;
}

void InFlight::Meet(std::span<Lane*> lanes) {
  Knowledge all;
  for (const Lane* lane : lanes) {
    const Mark mark = MarkOf(*lane);
    PerformBefore(mark);
    all.Add(mark);
    all.Add(lane->known);
  }
  for (Lane* lane : lanes) lane->known = all;
}

void InFlight::CompleteWithin(const uint8_t* begin, size_t bytes) {
  PerformIf([&](const PendingAccess& a) {
    return a.at >= begin && a.at < begin + bytes;
  });
}

void InFlight::PerformOne() {
  if (!living_.empty()) Perform(living_[random_() % living_.size()]);
}

bool InFlight::PerformAll() {
  const bool any = !living_.empty();
  while (!living_.empty()) Perform(living_.back());
  return any;
}

// ---- Order ----

void InFlight::NoteStrongRead(Lane& lane, const uint8_t* at, Order order,
                              Scope scope) {
  const auto found = released_.find(at);
  if (!Acquires(order) || found == released_.end()) return;
  // What is performed may change what the word carries.
  const std::vector<Release> carried = found->second;
  for (const Release& r : carried) {
    // Both scopes must hold both threads.
    if (r.mark.block != lane.block->index() &&
        std::min(r.scope, scope) != Scope::kGpu) {
      continue;
    }
    PerformBefore(r.mark);
    lane.known.Add(r.mark);
    lane.known.Add(snapshots_[r.known]);
  }
}

}  // namespace kvevict::ptx
