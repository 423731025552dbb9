// The order of threads follows the seed and the policy, and differs enough.
#include <algorithm>
#include <set>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {

struct OrderParams {
  uint64_t n_done;  // u32
  uint64_t order;   // u32 [steps]: the thread that made each step
};

KV_DEVICE void Step(const OrderParams& p) {
  const uint32_t i = AtomicAddGlobal(p.n_done, 1);
  StoreGlobal(p.order + 4 * i,
              static_cast<uint32_t>(blockIdx.x * blockDim.x + threadIdx.x));
}

// Each thread and warp takes five steps, and the warp meets between them.
KV_KERNEL(warp_steps, OrderParams, 128, 1) {
  for (int i = 0; i < 5; ++i) {
    Step(p);
    WarpSync();
  }
}

// A barrier between reading and the next writing would prevent this error.
KV_KERNEL(missing_barrier, OrderParams, 128, 1) {
  KV_SHARED(uint32_t, tile, 128);
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    tile[threadIdx.x] = i;
    BlockSync();
    wrong += tile[127 - threadIdx.x] != i;
  }
  AtomicAddGlobal(p.n_done, wrong);
}

}  // namespace kvevict::cuda

namespace {

using kvevict::cuda::OrderParams;
using kvevict::simt::AddressOf;
using kvevict::simt::Options;
using kvevict::simt::Policy;

constexpr Policy kAllPolicies[] = {Policy::kUniform, Policy::kOneWarpAhead,
                                   Policy::kRandomPriorities,
                                   Policy::kLastFirst};

std::vector<uint32_t> Order(unsigned n_blocks, const Options& options) {
  uint32_t n_done = 0;
  std::vector<uint32_t> order(n_blocks * 128 * 5);
  const std::string error = kvevict::simt::Launch(
      kvevict::cuda::warp_steps, {n_blocks}, {128}, 0,
      OrderParams{AddressOf(&n_done), AddressOf(order)}, options);
  CHECK(error.empty());
  return order;
}

void TheSeedDecides() {
  std::set<std::vector<uint32_t>> orders;
  for (const Policy policy : kAllPolicies) {
    const Options options = {.policy = policy, .seed = 5};
    CHECK(Order(6, options) == Order(6, options));
    orders.insert(Order(6, options));
    orders.insert(Order(6, {.policy = policy, .seed = 6}));
  }
  CHECK(orders.size() == 8);
}

// The warp that starts is done before another warp begins its second round.
void OneWarpRunsAhead() {
  const auto order = Order(1, {.policy = Policy::kOneWarpAhead, .seed = 1});
  for (size_t i = 0; i < 160; ++i) CHECK(order[i] / 32 == order[0] / 32);
}

void BlocksRunInManyOrders() {
  std::set<uint32_t> first;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = Order(3, {.seed = seed});
    for (size_t i = 0; i < order.size(); ++i) {
      CHECK(order[i] / 128 == order[i / 640 * 640] / 128);  // one by one
    }
    first.insert(order[0] / 128);
  }
  CHECK(first.size() == 3);
}

void ResidentBlocksRunSideBySide() {
  const auto order = Order(2, {.seed = 1, .resident_blocks = 2});
  const auto last_of_first =
      std::find_if(order.rbegin(), order.rend(),
                   [&](uint32_t who) { return who / 128 == order[0] / 128; });
  CHECK(order.rend() - last_of_first > 640);
}

#ifndef KVEVICT_SIMT_TSAN  // it would rightly report the race
void APolicySeesTheMissingBarrier() {
  for (const Policy policy :
       {Policy::kOneWarpAhead, Policy::kRandomPriorities, Policy::kLastFirst}) {
    uint32_t n_wrong = 0;
    const std::string error = kvevict::simt::Launch(
        kvevict::cuda::missing_barrier, {}, {128}, 0,
        OrderParams{AddressOf(&n_wrong), 0}, {.policy = policy});
    CHECK(error.empty());
    CHECK(n_wrong > 0);
  }
}
#endif

}  // namespace

int main() {
  TheSeedDecides();
  OneWarpRunsAhead();
  BlocksRunInManyOrders();
  ResidentBlocksRunSideBySide();
#ifndef KVEVICT_SIMT_TSAN
  APolicySeesTheMissingBarrier();
#endif
  return 0;
}
