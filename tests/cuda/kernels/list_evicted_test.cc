// The slots that lists do not keep, against a walk over all slots. No other word is
// written.
#include "cuda/kernels/list_evicted.cu"

#include <algorithm>
#include <vector>

#include "tests/cuda/kernels/keep_cases.h"

namespace kvevict {
namespace {

struct Lists {
  uint32_t n_tokens = 0;  // of any list, the most
  uint32_t n_keep = 0;
  uint32_t stride = 0;
  std::vector<uint32_t> token_counts, keep_counts;
  std::vector<int32_t> keep;  // [n_lists, keep_stride]
  std::vector<int32_t> slots, expected;
  std::vector<uint32_t> counts, expected_counts;
};

Lists MakeLists(uint32_t n_lists, uint32_t keep_stride, bool differ,
                uint32_t n_tokens, uint32_t n_keep, Random& random) {
  Lists l;
  l.n_tokens = n_tokens;
  l.n_keep = n_keep;
  uint32_t most = 0;
  for (uint32_t list = 0; list < n_lists; ++list) {
    const uint32_t tokens = differ ? random.Below(n_tokens + 1) : n_tokens;
    const uint32_t keep = differ ? random.Below(std::min(tokens, n_keep) + 1)
                                 : std::min(tokens, n_keep);
    l.token_counts.push_back(tokens);
    l.keep_counts.push_back(keep);
    most = std::max(most, tokens - keep);
  }
  l.stride = most + 1 + random.Below(3);
  l.keep.assign(size_t{n_lists} * keep_stride + 1, INT32_MAX);
  l.slots.assign(size_t{n_lists} * l.stride, INT32_MIN);
  l.expected = l.slots;
  l.counts.assign(n_lists, UINT32_MAX);
  l.expected_counts = l.counts;
  for (uint32_t list = 0; list < n_lists; ++list) {
    const std::vector<int32_t> keep =
        RandomKeep(l.token_counts[list], l.keep_counts[list], random);
    std::copy(keep.begin(), keep.end(),
              l.keep.begin() + size_t{list} * keep_stride);
    int32_t* out = l.expected.data() + size_t{list} * l.stride;
    for (uint32_t slot = 0; slot < l.token_counts[list]; ++slot) {
      const auto s = static_cast<int32_t>(slot);
      if (!std::binary_search(keep.begin(), keep.end(), s)) *out++ = s;
    }
    *out = static_cast<int32_t>(l.token_counts[list]);
    if (differ) {
      l.expected_counts[list] = l.token_counts[list] - l.keep_counts[list];
    }
  }
  return l;
}

void TestLists() {
  Random random(TestSeed("list_evicted/lists"));
  for (uint32_t turn = 0; turn < 80; ++turn) {
    cuda::EvictedParams p = {};
    const uint32_t n_layers = 1 + random.Below(3);
    const bool differ = turn % 2 == 1;
    p.n_lists = 1 + random.Below(4);
    const uint32_t n_tokens =
        turn % 7 == 0 ? 2000 + random.Below(500) : 1 + random.Below(300);
    const uint32_t n_keep = RandomCount(n_tokens, random);
    p.keep_stride = random.Below(2) * (n_keep + 1 + random.Below(5));
    const uint32_t stride = p.keep_stride == 0 ? n_keep : p.keep_stride;
    std::vector<Lists> layers;
    for (uint32_t i = 0; i < n_layers; ++i) {
      layers.push_back(
          MakeLists(p.n_lists, stride, differ, n_tokens, n_keep, random));
    }
    WordArena words;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n_layers; ++i) {
      Lists& l = layers[i];
      p.layers[i] = {Address(l.keep.data()),
                     Address(l.slots.data()),
                     differ ? Address(l.counts.data()) : 0,
                     l.n_tokens,
                     l.n_keep,
                     differ ? words.Add(l.token_counts) : 0,
                     differ ? words.Add(l.keep_counts) : 0,
                     l.stride,
                     0};
      longest = std::max(longest, l.stride);
    }
    const std::vector<int32_t> table = words.Take();
    if (differ) p.tokens = p.keep = {Address(table.data()), 1, 0};
    const uint32_t n_blocks =
        (longest + cuda::kEvictedThreads - 1) / cuda::kEvictedThreads;
    Run(cuda::list_evicted, {n_blocks, p.n_lists, n_layers},
        cuda::kEvictedThreads, p, Schedule(turn));
    for (const Lists& l : layers) {
      ExpectSame(l.slots, l.expected, "slots", turn);
      ExpectSame(l.counts, l.expected_counts, "counts", turn);
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestLists(); }
