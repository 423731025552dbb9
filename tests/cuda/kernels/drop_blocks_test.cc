// Tables of blocks that stay and go against a queue of those that went. No other entry
// is written.
#include "cuda/kernels/drop_blocks.cu"

#include <algorithm>
#include <deque>
#include <vector>

#include "tests/cuda/kernels/counts.h"
#include "tests/cuda/kernels/keep_cases.h"

namespace kvevict {
namespace {

// The new table: those that stay, then a queue of the others, whose first ones give way.
template <typename Entry>
void Expect(const std::vector<uint8_t>& stays, Entry* table) {
  std::vector<Entry> kept;
  std::deque<Entry> dropped;
  for (size_t begin = 0; begin < stays.size(); begin += cuda::kDropThreads) {
    const size_t end = std::min(stays.size(), begin + cuda::kDropThreads);
    const size_t n_before = dropped.size();
    size_t n_stay = 0;
    std::vector<Entry> behind;
    for (size_t i = begin; i < end; ++i) {
      (stays[i] ? kept : behind).push_back(table[i]);
      n_stay += stays[i];
    }
    for (size_t i = 0; i < std::min(n_stay, n_before); ++i) {
      dropped.push_back(dropped.front());
      dropped.pop_front();
    }
    dropped.insert(dropped.end(), behind.begin(), behind.end());
  }
  std::copy(kept.begin(), kept.end(), table);
  std::copy(dropped.begin(), dropped.end(), table + kept.size());
}

template <typename Entry>
struct Layer {
  uint32_t block_size;
  uint64_t table_stride;  // from head to head
  uint32_t longest;       // list
  std::vector<uint32_t> n_tokens, n_keep;
  std::vector<int32_t> keep;
  std::vector<Entry> entries, expected;
};

// A list's slots in whole blocks, and perhaps the last block, which is not full.
std::vector<int32_t> Slots(uint32_t n_tokens, uint32_t size, uint32_t n_stay,
                           std::vector<uint8_t>* stays, Random& random) {
  const uint32_t n = (n_tokens + size - 1) / size;
  const bool is_cut = n_tokens % size != 0;
  stays->assign(n, 0);
  if (is_cut) n_stay = std::max(n_stay, 1u);
  const uint32_t n_drawn = is_cut ? n_stay - 1 : n_stay;
  for (const int32_t block : RandomKeep(n - is_cut, n_drawn, random)) {
    (*stays)[block] = 1;
  }
  if (is_cut) stays->back() = 1;
  std::vector<int32_t> slots;
  for (uint32_t slot = 0; slot < n_tokens; ++slot) {
    if ((*stays)[slot / size]) slots.push_back(static_cast<int32_t>(slot));
  }
  return slots;
}

uint32_t MostBlocks(uint32_t turn, Random& random) {
  constexpr uint32_t kTile = cuda::kDropThreads;
  const uint32_t of[] = {40, kTile, kTile + 1, 3 * kTile, 4 * kTile + 7};
  return of[turn % 5] - random.Below(3);
}

template <typename Entry>
void Check(void (*kernel)(const cuda::DropBlocksParams&), uint32_t turn,
           Random& random) {
  cuda::DropBlocksParams p = {};
  const uint32_t n_layers = 1 + random.Below(3);
  const uint32_t n_tables = 1 + random.Below(3);
  p.n_lists = random.Below(2) == 0 ? 1 : n_tables;
  const bool differ = p.n_lists == n_tables && turn % 2 == 1;
  ListTable tokens(n_tables, differ, 2);
  ListTable counts(p.n_lists, differ, 1);
  std::vector<Layer<Entry>> layers(n_layers);
  for (Layer<Entry>& layer : layers) {
    const uint32_t size = random.Below(3) == 0 ? 1 : 1 + random.Below(5);
    const uint32_t n_blocks = MostBlocks(turn, random);
    const uint32_t most = n_blocks * size - random.Below(size);
    const uint32_t n_stay = RandomCount(n_blocks, random);
    layer.block_size = size;
    layer.table_stride =
        n_tables == 1 && random.Below(2) == 0 ? 0 : n_blocks + random.Below(9);
    const uint64_t stride = layer.table_stride;
    layer.entries.resize(n_tables * std::max<uint64_t>(stride, n_blocks) + 9);
    for (Entry& entry : layer.entries) {
      entry = (Entry{random.Below(UINT32_MAX)} << (8 * sizeof(Entry) - 32)) +
              random.Below(1000);
    }
    layer.expected = layer.entries;
    std::vector<std::vector<int32_t>> lists;
    std::vector<uint8_t> stays;
    for (uint32_t t = 0; t < n_tables; ++t) {
      const uint32_t n = differ && t > 0 ? random.Below(most + 1) : most;
      layer.n_tokens.push_back(n);
      if (t < p.n_lists) {
        const uint32_t n_here = (n + size - 1) / size;
        const uint32_t n_kept = differ && t > 0 ? RandomCount(n_here, random)
                                                : std::min(n_here, n_stay);
        lists.push_back(Slots(n, size, n_kept, &stays, random));
        if (!differ && t > 0) {  // lists that are equally long
          lists.back() = lists.front();
        }
        layer.n_keep.push_back(static_cast<uint32_t>(lists.back().size()));
      }
      std::vector<uint8_t> of_list((n + size - 1) / size, 0);
      for (const int32_t slot : lists[p.n_lists == 1 ? 0 : t]) {
        of_list[slot / size] = 1;
      }
      Expect(of_list, layer.expected.data() + t * stride);
    }
    for (uint32_t n : layer.n_tokens) tokens.AddList(n);
    for (uint32_t n : layer.n_keep) counts.AddList(n);
    layer.longest = *std::max_element(layer.n_keep.begin(), layer.n_keep.end());
    for (std::vector<int32_t>& list : lists) {
      list.resize(layer.longest, INT32_MAX);
      layer.keep.insert(layer.keep.end(), list.begin(), list.end());
    }
    layer.keep.push_back(INT32_MAX);
  }
  p.tokens = tokens.table();
  p.keep = counts.table();
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer<Entry>& layer = layers[l];
    // If one table serves all heads, others are not touched.
    p.layers[l] = {
        Address(layer.entries.data()),
        Address(layer.keep.data()),
        layer.table_stride,
        layer.table_stride == 0 ? 1 : n_tables,
        layer.block_size,
        *std::max_element(layer.n_tokens.begin(), layer.n_tokens.end()),
        layer.longest,
        tokens.FirstOf(l),
        counts.FirstOf(l)};
  }
  Run(kernel, {n_tables + turn % 2, n_layers}, cuda::kDropThreads, p,
      Schedule(turn));
  for (const Layer<Entry>& layer : layers) {
    ExpectSame(layer.entries, layer.expected, "entries", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;  // NOLINT
  Random random(TestSeed("drop_blocks"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    Check<uint32_t>(cuda::drop_ids, turn, random);
    Check<uint64_t>(cuda::drop_addresses, turn, random);
  }
}
