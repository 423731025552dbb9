// A module with a constant, for variant_test.cc.
#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/variant.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kStep = KV_STEP;

struct Counter {
  uint32_t value = 0;
  KV_DEVICE void Add() { value += kStep; }
};

}  // namespace

KV_KERNEL(count_steps, VariantParams, 32, 1) {
  KV_SHARED(uint32_t, steps, KV_STEP);
  Counter counter;
  for (uint32_t i = 0; i < p.n_steps; ++i) counter.Add();
  if (threadIdx.x < KV_STEP) steps[threadIdx.x] = counter.value;
  BlockSync();
  StoreGlobal(p.out + 4 * threadIdx.x, steps[threadIdx.x % KV_STEP]);
}

}  // namespace kvevict::cuda
