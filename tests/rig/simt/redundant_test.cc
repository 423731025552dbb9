#include <vector>

#include "tests/rig/simt/redundant.cu"
#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

int main() {
  std::vector<uint32_t> out(64);
  kvevict::simt::RunAll([&](auto options) {
    return kvevict::simt::Launch(
        kvevict::cuda::redundant, {}, {64}, 0,
        kvevict::cuda::RedundantParams{kvevict::simt::AddressOf(out)}, options);
  });
  for (uint32_t i = 0; i < 64; ++i) CHECK(out[i] == i);
  return 0;
}
