// Means of blocks have the bits of plain addition on every target.
#include "core/kernels/block_means.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

std::vector<float> Expected(const std::vector<float>& scores, uint32_t block) {
  std::vector<float> means;
  for (size_t begin = 0; begin < scores.size(); begin += block) {
    const size_t end = std::min(scores.size(), begin + block);
    float sum = scores[begin];
    for (size_t i = begin + 1; i < end; ++i) sum += scores[i];
    means.resize(end, sum / static_cast<float>(end - begin));
  }
  return means;
}

// Writes to another place, or over the scores.
void ExpectMeans(SimdTarget simd, const std::vector<float>& scores,
                 uint32_t block, bool in_place) {
  const size_t bytes = scores.size() * sizeof(float);
  GuardedPages in(bytes), out(bytes);
  GuardedPages& to = in_place ? in : out;
  std::memcpy(in.data(), scores.data(), bytes);
  auto* const got = reinterpret_cast<float*>(to.data());
  AverageBlocks(simd, reinterpret_cast<const float*>(in.data()), scores.size(),
                block, got);
  const std::vector<float> want = Expected(scores, block);
  for (size_t i = 0; i < scores.size(); ++i) {
    cr_assert((std::isnan(want[i]) && std::isnan(got[i])) || got[i] == want[i],
              "%s, %zu of %zu, blocks of %u: %.9g, not %.9g", simd.name, i,
              scores.size(), block, got[i], want[i]);
  }
}

TestSuite(block_means);

Test(block_means, are_those_of_plain_addition) {
  Random random(TestSeed("block_means/are_those_of_plain_addition"));
  const uint32_t kBlocks[] = {1, 2, 3, 5, 16, 20, 33, 70, 65536};
  for (size_t n = 1; n <= 700; n += n < 80 ? 1 : 61) {
    std::vector<float> scores(n);
    for (float& s : scores) s = random.Gaussian();
    for (const uint32_t block : kBlocks) {
      ForEachTarget([&](SimdTarget simd) {
        ExpectMeans(simd, scores, block, n % 2 == 0);
      });
    }
  }
}

Test(block_means, nan_and_infinity_stay_in_their_block) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kinds[] = {kNan, kInfinity, -kInfinity, 3e38f, -0.0f};
  for (size_t place = 0; place < 50; ++place) {
    for (const float kind : kinds) {
      std::vector<float> scores(50, 2.5f);
      scores[place] = kind;
      scores[(place + 1) % 50] = kinds[place % 5];
      ForEachTarget(
          [&](SimdTarget simd) { ExpectMeans(simd, scores, 4, true); });
    }
  }
}

}  // namespace
}  // namespace kvevict
