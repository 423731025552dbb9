// Keys by rank, bit for bit as in core/cpu/rank_keys.
#include "cuda/kernels/rank_keys.cu"

#include <algorithm>

#include "core/cpu/rank_keys.h"
#include "core/kernels/topk.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Layer {
  uint32_t n_tokens = 0;  // of any list, the most
  uint32_t n_keep = 0;
  uint32_t n_listed = 0;
  uint32_t tail = 0;
  uint32_t n_least = 0;
  std::vector<int32_t> positions;  // [n_lists, n_listed]
  std::vector<uint32_t> keys;      // [n_lists, n_tokens]
  std::vector<uint32_t> expected;
};

std::vector<TokenRange> RandomRanges(uint32_t n, uint32_t bound,
                                     Random& random) {
  std::vector<uint32_t> ends(2 * n);
  for (uint32_t& end : ends) end = random.Below(bound + bound / 3 + 1);
  if (n > 0 && random.Below(3) == 0) ends[0] = UINT32_MAX;
  std::sort(ends.begin(), ends.end());
  std::vector<TokenRange> ranges;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t rank = random.Below(9) == 0
                             ? (random.Below(2) == 0 ? INT32_MIN : INT32_MAX)
                             : static_cast<int32_t>(random.Below(5)) - 2;
    ranges.push_back({ends[2 * i], ends[2 * i + 1], rank});
  }
  return ranges;
}

uint32_t RandomKey(Random& random) {
  constexpr uint32_t kSpecials[] = {kForcedKey, kNanKey, 0x007fffffu,
                                    0xff800000u};
  if (random.Below(4) == 0) return kSpecials[random.Below(4)];
  return 0x80000000u + random.Below(6);
}

void Check(uint32_t turn, Random& random) {
  const uint32_t n_lists = 1 + turn % 3;
  const uint32_t n_layers = 1 + random.Below(3);
  const uint32_t n_most = turn % 4 == 0 ? 1200 : turn % 2 == 0 ? 300 : 20;
  const SlotBlocks blocks = {random.Below(2) == 0 ? 1 : 1 + random.Below(40)};
  const bool shares = turn % 5 == 4;
  const auto ranges =
      RandomRanges(turn % 9 == 0 ? 64 : random.Below(7), 2 * n_most, random);
  const uint32_t first =
      turn % 7 == 0 ? 5 : 0;  // slots before those of a chunk
  ListTable tokens(n_lists, random.Below(2) == 0, 2);
  ListTable keep(n_lists, random.Below(2) == 0, 1);
  ListTable listed(n_lists, random.Below(2) == 0, 1);
  std::vector<Layer> layers(n_layers);
  for (Layer& layer : layers) {
    layer.n_tokens = 1 + random.Below(n_most);
    layer.n_keep = random.Below(layer.n_tokens + 2);
    layer.n_listed = random.Below(layer.n_tokens + first + 1);
    layer.tail = 2 * layer.n_listed + random.Below(30);
    layer.n_least = random.Below(20);
    tokens.AddLayer(1, layer.n_tokens, random);
    keep.AddLayer(0, layer.n_keep, random);
    listed.AddLayer(0, layer.n_listed, random);
  }
  cuda::RankParams p = {};
  p.lists.tokens = tokens.table();
  p.lists.keep = keep.table();
  p.lists.n_lists = n_lists;
  p.lists.block = blocks.size;
  p.kept = listed.table();
  p.share = shares ? 0.25f * static_cast<float>(random.Below(5)) : -1.0f;
  p.n_ranges = static_cast<uint32_t>(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    p.ranges[i] = {ranges[i].first, ranges[i].end, ranges[i].rank};
  }
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    std::vector<uint32_t> n_listed(n_lists);
    for (uint32_t list = 0; list < n_lists; ++list) {
      n_listed[list] = listed.Of(l, list);
      int32_t position = 0;
      for (uint32_t i = 0; i < layer.n_listed; ++i) {
        position += static_cast<int32_t>(random.Below(2));
        layer.positions.push_back(i < n_listed[list] ? position++ : INT32_MAX);
      }
    }
    layer.keys.resize(size_t{n_lists} * layer.n_tokens);
    for (size_t i = 0; i < layer.keys.size(); ++i) {
      const bool begins = i % layer.n_tokens % blocks.size == 0;
      layer.keys[i] = begins ? RandomKey(random) : layer.keys[i - 1];
    }
    layer.expected = layer.keys;
    kvevict::SlotPositions slots;
    slots.kept = layer.positions.data();
    slots.n_kept = {layer.n_listed, n_listed.data()};
    slots.n_lists = n_lists;
    slots.tail_position = layer.tail;
    slots.first = first;
    for (uint32_t list = 0; list < n_lists; ++list) {
      const uint32_t n = tokens.Of(l, list);
      const uint32_t n_keep = std::min(keep.Of(l, list), n);
      const auto part = static_cast<uint32_t>(static_cast<float>(n_keep) *
                                              (shares ? p.share : 1.0f));
      const uint32_t n_best =
          shares ? std::min(std::max(part, layer.n_least), n_keep) : n_keep;
      if (n_best == n) continue;
      cpu::RankKeys(SimdTargetAt(0), SlotRanks(ranges, blocks, slots, list, n),
                    n_best, &layer.expected[size_t{list} * layer.n_tokens]);
    }
    p.layers[l].select = {Address(layer.keys.data()),
                          0,
                          layer.n_tokens,
                          layer.n_keep,
                          tokens.FirstOf(l),
                          keep.FirstOf(l)};
    p.layers[l].slots = {Address(layer.positions.data()), layer.n_listed,
                         layer.tail, listed.FirstOf(l), first};
    p.layers[l].n_least = layer.n_least;
  }
  Run(cuda::rank_keys, {n_lists, n_layers}, cuda::kSelectThreads, p,
      Schedule(turn));
  for (const Layer& layer : layers) {
    ExpectSame(layer.keys, layer.expected, "rank_keys", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("rank_keys"));
  for (uint32_t turn = 0; turn < 120; ++turn) {
    kvevict::Check(turn, random);
  }
}
