// Blocks that stay for how unlike their keys are, in any layout: chosen in the
// simplest way by the sums of core/kernels, bit for bit.
#include "cuda/kernels/similarity.cu"

#include <cmath>

#include "core/kernels/similarity.h"
#include "core/kernels/topk.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

// The inputs of a layer beside its rows.
struct Lists {
  std::vector<float> scores;   // [n_lists, n_tokens]
  std::vector<uint32_t> keys;  // [n_lists, n_tokens]
  uint32_t n_keep = 0;
};

// A list's slots between both ends.
struct Range {
  uint32_t begin, n_blocks, n_keep;
};

Range RangeOf(const cuda::SimilarityParams& p, uint32_t n, uint32_t n_keep) {
  const uint32_t sink =
      std::min((p.n_sink + p.block - 1) / p.block * p.block, n);
  const uint32_t recent = std::min(p.n_recent, n);
  const uint32_t end = std::max(sink, (n - recent) / p.block * p.block);
  const uint32_t n_ends = sink + n - end;
  return {sink, (end - sink) / p.block,
          n_keep > n_ends ? (n_keep - n_ends) / p.block : 0};
}

// Masses are multiples of 1/8, so sums are exact. The first or the last of blocks
// with equal keys is better.
std::vector<uint32_t> FindOthers(const cuda::SimilarityParams& p,
                                 const Range& range, const float* scores,
                                 const uint32_t* keys, uint32_t* n_left) {
  std::vector<float> mass(range.n_blocks, 0.0f);
  std::vector<uint32_t> order;
  float total = 0.0f;
  for (uint32_t k = 0; k < range.n_blocks; ++k) {
    for (uint32_t i = 0; i < p.block; ++i) {
      const float score = scores[range.begin + k * p.block + i];
      if (std::isfinite(score)) mass[k] += score;
    }
    total += mass[k];
    order.push_back(k);
  }
  const auto key = [&](uint32_t k) { return keys[range.begin + k * p.block]; };
  if (p.higher_wins != 0) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  std::vector<bool> taken(range.n_blocks, false);
  float sum = 0.0f;
  uint32_t n_taken = 0;
  for (uint32_t i = 0; i < range.n_blocks; ++i) {
    const uint32_t k = order[i];
    taken[k] =
        key(k) == kForcedKey || (i < range.n_keep && sum < p.mass * total);
    n_taken += taken[k];
    sum += mass[k];
  }
  *n_left = range.n_keep - std::min(n_taken, range.n_keep);
  std::vector<uint32_t> others;
  for (uint32_t k = 0; k < range.n_blocks; ++k) {
    if (!taken[k]) others.push_back(k);
  }
  return others;
}

std::vector<int64_t> SumsOf(const PlaneShape& c,
                            const cuda::SimilarityParams& p,
                            const CacheLayer& layer, uint32_t head,
                            const Range& range,
                            const std::vector<uint32_t>& others) {
  RowSource keys;
  keys.base = reinterpret_cast<const uint8_t*>(layer.Row(c, head, 0));
  keys.row_stride = static_cast<int64_t>(c.head_dim * sizeof(float));
  keys.element_stride = sizeof(float);
  const uint32_t n = range.n_blocks * p.block;
  std::vector<uint64_t> scratch(SimilarityScratchBytes(n, c.head_dim) / 8 + 1);
  std::vector<int64_t> sums(others.size());
  SumSimilarity(SimdTargetAt(0),
                {keys, range.begin, n, c.head_dim, p.block, others.data(),
                 static_cast<uint32_t>(others.size()), sums.data(),
                 reinterpret_cast<uint8_t*>(scratch.data())});
  return sums;
}

std::vector<float> Expected(const PlaneShape& c,
                            const cuda::SimilarityParams& p,
                            const CacheLayer& layer, const Lists& lists,
                            uint32_t list) {
  const uint32_t n = layer.n_tokens;
  const auto first = lists.scores.begin() + size_t{list} * n;
  std::vector<float> scores(first, first + n);
  const Range range = RangeOf(p, n, lists.n_keep);
  uint32_t n_left = 0;
  const std::vector<uint32_t> others = FindOthers(
      p, range, scores.data(), lists.keys.data() + size_t{list} * n, &n_left);
  if (n_left == 0) return scores;
  std::vector<int64_t> totals(others.size(), 0);
  for (uint32_t head = 0; head < c.n_heads; ++head) {
    if (p.n_lists > 1 && head != list) continue;
    const std::vector<int64_t> sums = SumsOf(c, p, layer, head, range, others);
    for (size_t i = 0; i < sums.size(); ++i) totals[i] += sums[i];
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < others.size(); ++i) order.push_back(i);
  if (p.higher_wins != 0) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return totals[a] < totals[b]; });
  std::fill_n(scores.begin() + range.begin, range.n_blocks * p.block,
              kInfinity);
  for (size_t i = n_left; i < order.size(); ++i) {
    std::fill_n(scores.begin() + range.begin + others[order[i]] * p.block,
                p.block, kNan);
  }
  return scores;
}

void Launch(const cuda::SimilarityParams& p, uint32_t n_layers, uint32_t turn) {
  const auto of_lists = [&](const auto& kernel) {
    Run(kernel, {p.n_lists, n_layers, 1}, cuda::kSimilarityThreads, p,
        Schedule(turn));
  };
  const auto of_heads = [&](const auto& kernel, uint32_t grid_x) {
    Run(kernel, {grid_x, p.n_kv_heads, n_layers}, cuda::kSimilarityThreads, p,
        Schedule(turn));
  };
  of_lists(cuda::similarity_take);
  of_heads(cuda::similarity_directions, p.n_chunks);
  if (p.n_chunks > 1) {
    of_heads(cuda::similarity_sums,
             (p.keys.head_dim + cuda::kSimilarityThreads - 1) /
                 cuda::kSimilarityThreads);
  }
  of_heads(cuda::similarity_rows,
           (p.stride + cuda::kCosineTile - 1) / cuda::kCosineTile);
  of_lists(cuda::similarity_keep);
}

// Few different sums, so that many blocks have equal keys; some must stay.
Lists DrawLists(const cuda::SimilarityParams& p, uint32_t n, Random& random) {
  Lists lists;
  for (uint32_t i = 0; i < p.n_lists * n; ++i) {
    const float odd = random.Below(2) == 0 ? kNan : kInfinity;
    lists.scores.push_back(random.Below(40) == 0
                               ? odd
                               : static_cast<float>(random.Below(9)) / 8.0f);
  }
  lists.keys.resize(lists.scores.size());
  for (uint32_t list = 0; list < p.n_lists; ++list) {
    for (uint32_t begin = 0; begin < n; begin += p.block) {
      const uint32_t key =
          random.Below(9) == 0 ? kForcedKey : 1000 + random.Below(5);
      const uint32_t end = std::min(n, begin + p.block);
      for (uint32_t i = begin; i < end; ++i) lists.keys[list * n + i] = key;
    }
  }
  const uint32_t n_blocks = RangeOf(p, n, n).n_blocks;
  lists.n_keep = n - random.Below(n_blocks + 1) * p.block;
  return lists;
}

void Check(const PlaneShape& c, Random& random, uint32_t turn) {
  ListTable tokens(c.n_heads, false, 2);
  const uint32_t n_layers = 1 + turn % 2;
  uint32_t n_longest = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = 2 + random.Below(c.n_most);
    tokens.AddLayer(most, most, random);
    n_longest = std::max(n_longest, most);
  }
  std::vector<float> odd;
  if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
  cuda::SimilarityParams p = {};
  p.keys = c.cache_rows();
  p.n_kv_heads = c.n_heads;
  p.n_lists = turn % 3 == 0 ? 1 : c.n_heads;
  p.stride = n_longest;
  p.n_chunks =
      (n_longest + cuda::kSimilarityChunk - 1) / cuda::kSimilarityChunk;
  p.block = 2 + random.Below(std::min(n_longest - 1, 20u));
  p.n_sink = random.Below(10);
  p.n_recent = random.Below(10);
  p.higher_wins = random.Below(2);
  constexpr float kMasses[] = {0.9f, 0.5f, 0.1f, 1.0f};
  p.mass = kMasses[random.Below(4)];
  const size_t n_heads = size_t{n_layers} * c.n_heads;
  std::vector<int64_t> row_sums(n_heads * p.stride, -1);
  std::vector<int64_t> totals(n_heads * (p.stride / p.block), -1);
  std::vector<float> sums(n_heads * p.n_chunks * c.head_dim, kNan);
  std::vector<float> scales(n_heads * p.stride, kNan);
  std::vector<uint32_t> words(
      n_heads * cuda::SimilarityWords(p.stride / p.block), 0x99999999u);
  p.row_sums = Address(row_sums.data());
  p.totals = Address(totals.data());
  p.sums = Address(sums.data());
  p.scales = Address(scales.data());
  p.words = Address(words.data());
  std::vector<CacheLayer> layers;
  std::vector<Lists> lists;
  std::vector<std::vector<float>> expected;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(c, tokens, l, odd, random, true));
    lists.push_back(DrawLists(p, layers[l].n_tokens, random));
    std::vector<float> all;
    for (uint32_t i = 0; i < p.n_lists; ++i) {
      const std::vector<float> one = Expected(c, p, layers[l], lists[l], i);
      all.insert(all.end(), one.begin(), one.end());
    }
    expected.push_back(all);
  }
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(lists[l].scores.data()),
                   Address(lists[l].keys.data()),
                   layers[l].n_tokens,
                   lists[l].n_keep};
  }
  Launch(p, n_layers, turn);
  for (size_t l = 0; l < n_layers; ++l) {
    ExpectSame(lists[l].scores, expected[l], "similarity", turn);
  }
}

void TestSimilarity() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("similarity"));
  for (uint32_t turn = 0; turn < 66; ++turn) {
    // There is one tile or chunk, or several.
    const uint32_t n_most = turn % 11 == 0 ? 600 : turn % 3 == 0 ? 200 : 50;
    const PlaneShape c = PlaneOfTurn(turn, n_most, random);
    Check(c, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestSimilarity(); }
