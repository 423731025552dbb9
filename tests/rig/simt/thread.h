// Services of the running thread for the words of device.h.
#ifndef KVEVICT_TESTS_RIG_SIMT_THREAD_H_
#define KVEVICT_TESTS_RIG_SIMT_THREAD_H_

#include <cstddef>
#include <cstdint>

#include "tests/rig/simt/simt.h"

namespace kvevict::simt {

// A word's place in a kernel; as a default argument, in its caller.
struct Site {
  const char* file = "";
  unsigned line = 0;
  static constexpr Site Here(const char* file = __builtin_FILE(),
                             unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

const Dim3& ThreadIndex();
const Dim3& BlockIndex();
const Dim3& BlockSize();
const Dim3& GridSize();
unsigned Lane();

// The block's array of this id, made at the first call: a heap block of exactly
// these bytes, filled with 0xFF.
void* SharedArray(const void* id, size_t bytes);
uint8_t* DynamicShared();

// Ends the launch with this text.
[[noreturn]] void Fail(const char* text, const Site& site);
// Fails unless the 16 aligned bytes at p are the block's shared memory.
void CheckShared16(const void* p, const Site& site);
void CheckAligned(uint64_t address, size_t bytes, const Site& site);

void BlockBarrier(const Site& site);
// The same; returns whether any thread passes true.
bool BlockReduceOr(bool v, const Site& site);
void WarpBarrier(const Site& site);

// Lets the others that are ready run first.
void Yield(const Site& site);
// Perhaps lets others run: before global atomics, which other blocks may see.
enum class Access { kRead, kWrite };
void Preempt(Access access);

// ---- Collectives of a warp; order no memory ----

uint32_t WarpShuffle(const char* what, uint32_t v, unsigned from_lane,
                     const Site& site);
uint32_t WarpBallot(bool v, const Site& site);
// `row`: the 16 bytes of the matrix row that this lane names.
void WarpLoadMatrix4(uint32_t (&r)[4], const uint32_t (&row)[4],
                     const Site& site);
void WarpLoadTransposed4(uint32_t (&r)[4], const uint32_t (&row)[4],
                         const Site& site);
// least_exponent is that of rig::MultiplyAccumulate().
void WarpMultiply16816(float (*to_float)(uint32_t bits), int least_exponent,
                       float (&c)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[2], const Site& site);

// ---- Asynchronous copies of this thread ----

struct Copy {
  void* shared;
  uint64_t address;  // 0: zero bytes
  unsigned group;
};
void AddCopy(void* shared, uint64_t address);
void CommitCopies();
// Takes the next copy of all groups except the last n_groups; false: none is left.
bool TakeCopy(unsigned n_groups, Copy* copy);

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_THREAD_H_
