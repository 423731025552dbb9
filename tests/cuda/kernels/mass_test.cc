// The mass that lists keep, against core/kernels/mass bit for bit.
#include "cuda/kernels/mass.cu"

#include <algorithm>
#include <cmath>

#include "core/kernels/mass.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

float RandomScore(uint32_t kind, Random& random) {
  if (random.Below(12) == 0) return DrawRare(random);
  if (kind == 0) return std::abs(random.Gaussian());
  if (kind == 1) return std::ldexp(std::abs(random.Gaussian()), -140);
  return static_cast<float>(random.Below(5));
}

std::vector<int32_t> Choose(uint32_t n, uint32_t n_keep, uint32_t first,
                            Random& random) {
  std::vector<int32_t> keep;
  for (uint32_t i = 0; i < n; ++i) {
    const auto left = n_keep - static_cast<uint32_t>(keep.size());
    if (random.Below(n - i) < left) {
      keep.push_back(static_cast<int32_t>(first + i));
    }
  }
  return keep;
}

void Check(uint32_t turn, Random& random) {
  const uint32_t n_lists = 1 + turn % 3;
  const uint32_t n_layers = 1 + random.Below(3);
  const uint32_t first = turn % 4 == 0 ? 1000 : 0;
  const uint32_t n_most = turn % 2 == 0 ? 1100 : 30;
  ListTable tokens(n_lists, random.Below(2) == 0, 2);
  ListTable counts(n_lists, random.Below(2) == 0, 1);
  std::vector<uint32_t> most_tokens(n_layers), most_keep(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    most_tokens[l] = 1 + random.Below(n_most);
    most_keep[l] = random.Below(most_tokens[l] + 1);
    tokens.AddLayer(1, most_tokens[l], random);
    counts.AddLayer(0, most_keep[l], random);
  }
  cuda::MassParams p = {};
  p.lists.tokens = tokens.table();
  p.lists.keep = counts.table();
  p.lists.n_lists = n_lists;
  p.lists.keep_stride = turn % 3 == 0 ? 1200 : 0;
  p.lists.first_slot = first;
  p.adds = turn % 5 == 0;
  std::vector<std::vector<float>> scores(n_layers);
  std::vector<std::vector<int32_t>> keep(n_layers);
  std::vector<std::vector<Mass>> masses(n_layers), expected(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    const uint32_t stride =
        p.lists.keep_stride == 0 ? most_keep[l] : p.lists.keep_stride;
    scores[l].resize(size_t{n_lists} * most_tokens[l]);
    for (float& score : scores[l]) score = RandomScore(turn % 3, random);
    if (turn % 6 == 1) scores[l][0] = -1.0f;
    keep[l].assign(size_t{n_lists} * stride, -1);
    masses[l].assign(n_lists, {2.0f, 1.0f, 0.25f});
    for (uint32_t list = 0; list < n_lists; ++list) {
      const uint32_t n = tokens.Of(l, list);
      const float* const row = &scores[l][size_t{list} * most_tokens[l]];
      const auto chosen =
          Choose(n, std::min(n, counts.Of(l, list)), first, random);
      std::copy(chosen.begin(), chosen.end(),
                keep[l].begin() + size_t{list} * stride);
      const Mass mass = MeasureMass(row, n, first, chosen.data(),
                                    static_cast<uint32_t>(chosen.size()));
      expected[l].push_back(p.adds != 0 ? masses[l][list] + mass : mass);
    }
    p.layers[l] = {
        {Address(scores[l].data()), Address(keep[l].data()), most_tokens[l],
         most_keep[l], tokens.FirstOf(l), counts.FirstOf(l)},
        Address(masses[l].data())};
  }
  Run(cuda::list_masses, {n_lists, n_layers}, cuda::kSelectThreads, p,
      Schedule(turn));
  const auto floats = [](const std::vector<Mass>& of) {
    std::vector<float> all;
    for (const Mass& mass : of) {
      all.insert(all.end(), {mass.all, mass.kept, mass.largest_evicted});
    }
    return all;
  };
  for (uint32_t l = 0; l < n_layers; ++l) {
    ExpectSame(floats(masses[l]), floats(expected[l]), "masses", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("mass"));
  for (uint32_t turn = 0; turn < 90; ++turn) {
    kvevict::Check(turn, random);
  }
}
