// The measures of blocks added up for each layer, against sums in double precision.
#include "cuda/kernels/add_measures.cu"

#include <cmath>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

void Check(uint32_t n_parts, uint32_t turn, Random& random) {
  const uint32_t n_layers = 1 + turn % 4;
  std::vector<float> parts(size_t{n_layers} * n_parts * 2);
  for (float& part : parts) part = std::abs(random.Gaussian());
  std::vector<float> out(2 * n_layers, NAN);
  cuda::AddMeasuresParams p = {};
  p.parts = Address(parts.data());
  p.n_parts = n_parts;
  p.scale = 0.25f;
  for (uint32_t l = 0; l < n_layers; ++l) p.out[l] = Address(&out[2 * l]);
  Run(cuda::add_measures, {n_layers}, 32, p, Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    double sums[2] = {};
    for (uint32_t i = 0; i < 2 * n_parts; ++i) {
      sums[i % 2] += parts[size_t{l} * n_parts * 2 + i];
    }
    // Some 70 additions of numbers >= 0.
    const double error = 70 * std::ldexp(1.0, -24);
    if (std::abs(out[2 * l] - 0.25 * sums[0]) > error * sums[0] ||
        std::abs(out[2 * l + 1] - sums[1]) > error * sums[1]) {
      std::fprintf(stderr, "%u parts, layer %u: %g %g, not %g %g\n", n_parts, l,
                   double{out[2 * l]}, double{out[2 * l + 1]}, 0.25 * sums[0],
                   sums[1]);
      std::exit(1);
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("add_measures"));
  uint32_t turn = 0;
  for (uint32_t n_parts : {1u, 2u, 31u, 32u, 33u, 64u, 512u, 1000u}) {
    for (int i = 0; i < 4; ++i) kvevict::Check(n_parts, turn++, random);
  }
}
