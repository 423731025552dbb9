// Errors of kernels with barriers, collectives and addresses are reported with
// the place, and the test program goes on in good order.
#include <string>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {

struct NoParams {
  uint64_t flag;
};

KV_KERNEL(other_barrier, NoParams, 64, 1) {
  if (threadIdx.x == 7) {
    BlockSync();
  } else {
    BlockSync();
  }
}

KV_KERNEL(returns_before_barrier, NoParams, 64, 1) {
  if (threadIdx.x == 40) return;
  BlockSync();
}

KV_KERNEL(warps_apart, NoParams, 64, 1) {
  if (threadIdx.x == 0) {
    WarpSync();
  } else {
    BlockSync();
  }
}

KV_KERNEL(other_collective, NoParams, 32, 1) {
  if (threadIdx.x < 16) {
    Ballot(true);
  } else {
    ShuffleXor(1, 1);
  }
}

KV_KERNEL(other_call_of_collective, NoParams, 32, 1) {
  if (threadIdx.x < 16) {
    ShuffleXor(1, 1);
  } else {
    ShuffleXor(1, 1);
  }
}

KV_KERNEL(returns_before_shuffle, NoParams, 64, 1) {
  if (threadIdx.x == 33) return;
  Shuffle(1, 0);
}

KV_KERNEL(waits_for_nobody, NoParams, 32, 1) {
  if (threadIdx.x == 5) {
    while (LoadAcquire(p.flag) == 0) SpinYield();
  }
  BlockSync();
}

KV_KERNEL(misaligned_load, NoParams, 32, 1) { LoadGlobal<float>(p.flag + 2); }
KV_KERNEL(misaligned_store, NoParams, 32, 1) {
  StoreGlobal(p.flag + 8, Bytes16{});
}

KV_KERNEL(copies_to_its_stack, NoParams, 32, 1) {
  Bytes16 local = {};
  CopyAsync16(&local, p.flag, true);
}

KV_KERNEL(copies_behind_shared, NoParams, 32, 1) {
  KV_SHARED(Bytes16, tile, 2);
  CopyAsync16(tile + 2, p.flag, true);
}

KV_KERNEL(misaligned_row, NoParams, 32, 1) {
  KV_SHARED(Bytes16, tile, 4);
  uint32_t r[4];
  LoadMatrix4(r, reinterpret_cast<const char*>(tile) + 8);
}

KV_KERNEL(does_nothing, NoParams, 64, 1) {}

}  // namespace kvevict::cuda

namespace {

using kvevict::cuda::NoParams;
using kvevict::simt::Dim3;

alignas(16) uint32_t memory[8] = {};

std::string ErrorOf(void (*kernel)(const NoParams&), Dim3 grid, Dim3 block,
                    kvevict::simt::Options options) {
  return kvevict::simt::Launch(kernel, grid, block, 0,
                               NoParams{kvevict::simt::AddressOf(memory)},
                               options);
}

void Expect(void (*kernel)(const NoParams&), unsigned threads,
            std::vector<std::string> words) {
  for (const kvevict::simt::Policy policy : kvevict::simt::kPolicies) {
    const std::string error =
        ErrorOf(kernel, {3}, {threads},
                {.policy = policy, .seed = kvevict::simt::Seed()});
    for (const std::string& word : words) {
      if (error.find(word) != std::string::npos) continue;
      std::fprintf(stderr, "'%s' is not in: %s\n", word.c_str(), error.c_str());
      std::exit(1);
    }
  }
}

void LaunchesThatCannotBe() {
  using kvevict::cuda::does_nothing;
  CHECK(ErrorOf(does_nothing, {1}, {64}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {1}, {33}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {1}, {2048}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {1}, {0}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {0}, {64}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {1, 65536}, {64}, {}).empty());
  CHECK(!ErrorOf(does_nothing, {1}, {64}, {.resident_blocks = 0}).empty());
}

}  // namespace

int main() {
  using namespace kvevict::cuda;  // NOLINT(google-build-using-namespace)
  const std::string here = "misuse_test.cc:";
  Expect(other_barrier, 64, {"BlockSync at ", here, ", but others wait in "});
  Expect(returns_before_barrier, 64, {"BlockSync at ", here, "return"});
  Expect(warps_apart, 64,
         {"deadlock: 63 in BlockSync at ", here, "; 1 in WarpSync at "});
  Expect(other_collective, 32, {"Ballot at ", "ShuffleXor at ", here});
  Expect(other_call_of_collective, 32,
         {"ShuffleXor at ", here, ", but others wait in "});
  Expect(returns_before_shuffle, 64, {"Shuffle at ", here, "return"});
  Expect(waits_for_nobody, 32,
         {"threads look in vain: ", "31 in BlockSync at ", "1 in SpinYield at ",
          "thread 5"});
  Expect(misaligned_load, 32, {"misaligned address at ", here});
  Expect(misaligned_store, 32, {"misaligned address at ", here});
  Expect(copies_to_its_stack, 32, {"not shared memory at ", here});
  Expect(copies_behind_shared, 32, {"not shared memory at ", here});
  Expect(misaligned_row, 32, {"not aligned to 16 bytes at ", here});
  LaunchesThatCannotBe();
  return 0;
}
