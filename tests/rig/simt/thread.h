// Services of the running thread for the words of device.cuh.
#ifndef KVEVICT_TESTS_RIG_SIMT_THREAD_H_
#define KVEVICT_TESTS_RIG_SIMT_THREAD_H_

#include <cstddef>
#include <cstdint>

#include "tests/rig/simt/simt.h"

namespace kvevict::simt {

const Dim3& ThreadIndex();
const Dim3& BlockIndex();
const Dim3& BlockSize();
const Dim3& GridSize();
unsigned Lane();

// The block's array of this id, made at the first call and filled with 0xFF.
void* SharedArray(const void* id, size_t bytes);
uint8_t* DynamicShared();

void BlockBarrier();
// The same; returns whether any thread passes true.
bool BlockReduceOr(bool v);
void WarpBarrier();

uint32_t WarpShuffle(uint32_t v, unsigned from_lane);
uint32_t WarpBallot(bool v);
// `row`: the 16 bytes of the matrix row that this lane names.
void WarpLoadMatrix4(uint32_t (&r)[4], const uint32_t (&row)[4]);
void WarpLoadTransposed4(uint32_t (&r)[4], const uint32_t (&row)[4]);
// least_exponent is that of rig::MultiplyAccumulate().
void WarpMultiply16816(float (*to_float)(uint32_t bits), int least_exponent,
                       float (&c)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[2]);

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_THREAD_H_
