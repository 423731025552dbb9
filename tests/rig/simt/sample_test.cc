// The pattern of a kernel test: inputs, every policy, results compared.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/rig/simt/run.h"
#include "tests/rig/simt/sample.cu"
#include "tests/thread/check.h"

int main() {
  constexpr uint32_t kBlocks = 5;
  using kvevict::simt::AddressOf;
  std::vector<kvevict::cuda::Bytes16> rows(64 * kBlocks);
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = {{i, 2 * i, 7, i * i}};

  std::vector<uint32_t> expected(kBlocks);
  uint32_t total = 0;
  uint32_t sum_of_totals = 0;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    for (uint32_t i = 64 * b; i < 64 * (b + 1); ++i) {
      total += i + 2 * i + 7 + i * i;
    }
    expected[b] = total;
    sum_of_totals += total;
  }

  kvevict::simt::RunAll([&](auto options) {
    options.resident_blocks = kBlocks;
    std::vector<uint32_t> flags(kBlocks);
    std::vector<uint32_t> totals(kBlocks);
    std::vector<uint32_t> parts(kBlocks);
    uint32_t ticket = 0;
    uint32_t result = 0;
    std::string error = kvevict::simt::Launch(
        kvevict::cuda::sample_sums, {kBlocks}, {64}, 0,
        kvevict::cuda::SampleParams{AddressOf(rows), AddressOf(flags),
                                    AddressOf(totals), AddressOf(parts),
                                    AddressOf(&ticket), AddressOf(&result)},
        options);
    CHECK(totals == expected);
    CHECK(result == sum_of_totals);
    return error;
  });
  return 0;
}
