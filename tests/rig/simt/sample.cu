// A kernel with one of every wait, all of them needed.
#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/sample.h"

namespace kvevict::cuda {
namespace {

// The sum of the numbers that the threads of a warp hold, in shared memory.
KV_DEVICE uint32_t WarpSum(uint32_t* slots, uint32_t v) {
  const unsigned lane = threadIdx.x % 32;
  uint32_t* const own = slots + threadIdx.x - lane;
  own[lane] = v;
  WarpSync();
  uint32_t sum = 0;
  for (unsigned i = 0; i < 32; ++i) sum += own[i];
  return sum;
}

}  // namespace

// Each block sums the words of 64 rows of 16 bytes and hands the running total
// to the next block. The last block to end writes the sum of all totals.
KV_KERNEL(sample_sums, SampleParams, 64, 1) {
  KV_SHARED(Bytes16, rows, 64);
  KV_SHARED(uint32_t, slots, 64);
  KV_SHARED(uint32_t, warp_sums, 2);
  KV_SHARED(uint32_t, ticket, 1);
  const unsigned t = threadIdx.x;
  const unsigned b = blockIdx.x;
  CopyAsync16(&rows[t], p.rows + 16 * (64 * b + t), true);
  CopyAsyncCommit();
  CopyAsyncWait<0>();
  BlockSync();
  const Bytes16& row = rows[63 - t];
  const uint32_t sum =
      WarpSum(slots, row.x[0] + row.x[1] + row.x[2] + row.x[3]);
  if (t % 32 == 0) warp_sums[t / 32] = sum;
  BlockSync();
  if (t == 0) {
    uint32_t total = warp_sums[0] + warp_sums[1];
    if (b != 0) {
      while (LoadAcquire(p.flags + 4 * (b - 1)) == 0) SpinYield();
      total += LoadGlobal<uint32_t>(p.totals + 4 * (b - 1));
    }
    StoreGlobal(p.totals + 4 * b, total);
    StoreRelease(p.flags + 4 * b, 1);
    StoreGlobal(p.parts + 4 * b, total);
    ticket[0] = AtomicTicket(p.ticket);
  }
  BlockSync();
  if (ticket[0] + 1 != gridDim.x || t != 0) return;
  uint32_t sum_of_totals = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    sum_of_totals += LoadGlobal<uint32_t>(p.parts + 4 * i);
  }
  StoreGlobal(p.result, sum_of_totals);
}

}  // namespace kvevict::cuda
