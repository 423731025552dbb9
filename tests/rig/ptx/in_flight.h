// Loads, stores and atomics that have been issued but not performed yet.
//
// An access waits here and is performed when chance picks it, or when PTX's
// memory model says that it comes before something else that happens now:
//
//   a register waits for its result and is used
//   its thread, or after a barrier any thread of its block, comes back to the
//     same bytes, and one of the two accesses writes
//   somebody acquires what its thread released after it
//   a bar.warp.sync
//   the launch ends
//
// A release alone performs nothing: without an acquire that reads what was
// released, and a scope that holds both, there is no order. So an access may stay
// behind a barrier of its block, a flag that others have seen and the end of its
// block, and a word too weak shows wherever the order was needed.
#ifndef KVEVICT_TESTS_RIG_PTX_IN_FLIGHT_H_
#define KVEVICT_TESTS_RIG_PTX_IN_FLIGHT_H_

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/order.h"

namespace kvevict::ptx {

enum class AccessKind : uint8_t { kLoad, kStore, kAtomic };

struct PendingAccess {
  // Reads and writes memory, and registers unless `lane` is NULL.
  void (*perform)(const PendingAccess&) = nullptr;
  const Instruction* instruction = nullptr;
  Lane* lane = nullptr;  // its registers wait
  uint8_t* at = nullptr;
  uint32_t bytes = 0;
  AccessKind kind = AccessKind::kLoad;
  uint16_t next = 0;   // in its bucket
  uint16_t place = 0;  // among the living
  Mark mark = {};
  bool releases = false;
  uint32_t known = 0;  // what its thread knew then, if it releases
  alignas(8) uint8_t operands[16] = {};  // what is stored; of atomics b, c
};

void PerformStore(const PendingAccess& access);

class InFlight {
 public:
  // Draws how many accesses may wait. If none may, all are performed when they are
  // issued.
  explicit InFlight(std::mt19937_64& random);

  // Whether accesses of the space come here.
  static bool Has(Space space) {
    return space == Space::kGlobal || space == Space::kShared;
  }

  // The thread's present place in the order.
  Mark MarkOf(const Lane& lane);

  // The thread touches these bytes now: performs what comes before that.
  void Settle(const Lane& lane, const uint8_t* at, uint32_t bytes,
              bool is_store) {
    if (buckets_[Bucket(at)] != kNone) SettleBucket(lane, at, bytes, is_store);
  }

  // Takes an access that its thread issues. The caller has set the members that say
  // what it does; this sets the others.
  void Add(Lane& lane, PendingAccess& access);
  // An atomic whose scope is the block is a load and a store to other blocks.
  void AddTorn(Lane& lane, PendingAccess& access);
  // A strong load or an atomic has just read. If it acquires, what was released with
  // the value comes before the thread now.
  void NoteStrongRead(Lane& lane, const uint8_t* at, Order order, Scope scope);

  // Performs what the registers of the instruction wait for.
  void Await(Lane& lane, const Instruction& i);
  // The thread has ended: nobody waits for its loads.
  void Abandon(Lane& lane);
  // Performs everything that the threads have issued or that comes before them.
  // All then come after each other's accesses.
  void Meet(std::span<Lane*> lanes);
  void CompleteWithin(const uint8_t* begin, size_t bytes);
  void PerformOne();
  bool PerformAll();  // false if there was nothing

 private:
  static constexpr uint16_t kNone = 0xFFFF;
  static constexpr uint32_t kBuckets = 4096;

  // Accesses are aligned and have at most 16 bytes.
  static uint32_t Bucket(const uint8_t* at) {
    return static_cast<uint32_t>(
        (reinterpret_cast<uint64_t>(at) >> 4) * 0x9E3779B97F4A7C15u >> 52);
  }

  void SettleBucket(const Lane& lane, const uint8_t* at, uint32_t bytes,
                    bool is_store);
  void Perform(uint16_t id);
  void PerformNow(const PendingAccess& access);
  void NoteWrite(const PendingAccess& access);
  void PerformBefore(const Mark& mark);
  uint32_t KnownTo(const Lane& lane);  // the number of a snapshot
  uint16_t Take();
  void Link(uint16_t id);
  void Unlink(uint16_t id);
  // Performs what `choose` chooses, however often the list changes.
  template <class Choose>
  void PerformIf(Choose choose);

  // At most so many wait. If one more comes, chance picks one of them.
  uint32_t capacity_;
  std::mt19937_64& random_;
  uint64_t next_serial_ = 1;
  std::vector<PendingAccess> accesses_;
  std::vector<uint16_t> living_;
  std::vector<uint16_t> free_;
  std::vector<uint16_t> buckets_;
  // The releases, by the address of the word that carries them.
  std::unordered_map<const uint8_t*, std::vector<Release>> released_;
  std::deque<Knowledge> snapshots_;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_IN_FLIGHT_H_
