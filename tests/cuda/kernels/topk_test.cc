// Selection against core/kernels/topk.
#include "core/kernels/topk.h"

#include <algorithm>
#include <bit>
#include <set>

#include "core/kernels/block_means.h"
#include "cuda/kernels/topk.cu"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

// A layer of a launch and the expected result.
struct Layer {
  uint32_t n_tokens;            // of any list, the most
  uint32_t n_keep;              // of any list, the most
  std::vector<uint32_t> words;  // `lead` words, then scores or keys per list
  std::vector<int32_t> keep;    // [n_lists, stride]
  std::vector<int32_t> expected;
};

// The layers of a launch, and how many slots each list has and keeps.
struct Layers {
  std::vector<Layer> all;
  ListTable tokens;
  ListTable keep;
};

struct Case {
  cuda::SelectInput input;
  uint32_t n_lists;
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t kind;
  uint32_t lead;
  bool higher_wins;
  bool has_token_counts;
  bool has_keep_counts;
  uint32_t keep_stride;  // 0: the layer's n_keep
  uint32_t first_slot;

  uint32_t StrideOf(uint32_t n_keep) const {
    return keep_stride == 0 ? n_keep : keep_stride;
  }
};

// Selects by the CPU's kernels.
void SelectOnHost(const std::vector<float>& scores, const Case& c,
                  uint32_t n_keep, std::vector<int32_t>* keep,
                  std::vector<uint32_t>* keys) {
  const uint32_t n = static_cast<uint32_t>(scores.size());
  keys->resize(n);
  ScoresToKeys(SimdTargetAt(0), scores.data(), n, keys->data());
  for (uint32_t i = 0; i < n; ++i) {
    if (i >= c.n_sink && i < n - c.n_recent) continue;
    (*keys)[i] = kForcedKey;
  }
  keep->resize(n_keep);
  SelectTopK(SimdTargetAt(0), keys->data(), n, n_keep,
             c.higher_wins ? Tie::kHigher : Tie::kLower, keep->data());
}

Layer MakeLayer(const Case& c, const ListTable& tokens, const ListTable& keeps,
                size_t l, Random& random) {
  Layer layer = {};
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, list));
    layer.n_keep = std::max(layer.n_keep, keeps.Of(l, list));
  }
  const uint32_t stride = c.StrideOf(layer.n_keep);
  layer.words.assign(c.lead, 0);
  layer.expected.assign(size_t{c.n_lists} * stride, -1);
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    const uint32_t n_tokens = tokens.Of(l, list);
    std::vector<float> scores = DrawScores(n_tokens, c.kind, random);
    if (c.input == cuda::kSelectNothing) {
      std::fill(scores.begin(), scores.end(), kNan);
    }
    std::vector<int32_t> keep;
    std::vector<uint32_t> keys;
    SelectOnHost(scores, c, keeps.Of(l, list), &keep, &keys);
    for (uint32_t i = 0; i < n_tokens; ++i) {
      layer.words.push_back(c.input == cuda::kSelectKeys
                                ? keys[i]
                                : std::bit_cast<uint32_t>(scores[i]));
    }
    // Keys that would win lie behind a shorter list.
    layer.words.resize(layer.words.size() + layer.n_tokens - n_tokens,
                       c.input == cuda::kSelectKeys ? kForcedKey : 0x7F800000u);
    std::transform(keep.begin(), keep.end(),
                   layer.expected.begin() + size_t{list} * stride,
                   [&](int32_t place) {
                     return static_cast<int32_t>(c.first_slot) + place;
                   });
  }
  layer.keep.assign(layer.expected.size(), -1);
  return layer;
}

cuda::SelectParams ParamsFor(const Case& c, const Layers& layers) {
  cuda::SelectParams p = {};
  p.lists = {layers.tokens.table(),
             layers.keep.table(),
             c.keep_stride,
             c.n_lists,
             c.higher_wins,
             c.n_sink,
             c.n_recent,
             1,
             c.first_slot,
             0};
  p.input = c.input;
  for (size_t l = 0; l < layers.all.size(); ++l) {
    const Layer& layer = layers.all[l];
    // Nothing is read if nothing is ranked.
    p.layers[l] = {c.input == cuda::kSelectNothing
                       ? 0
                       : Address(layer.words.data() + c.lead),
                   Address(layer.keep.data()),
                   layer.n_tokens,
                   layer.n_keep,
                   layers.tokens.FirstOf(l),
                   layers.keep.FirstOf(l)};
  }
  return p;
}

void ExpectSelected(const Layers& layers, const char* what, uint32_t turn) {
  for (const Layer& layer : layers.all) {
    ExpectSame(layer.keep, layer.expected, what, turn);
  }
}

void SelectShort(const Case& c, const Layers& given, uint32_t turn) {
  const Layers layers = given;
  const cuda::SelectParams p = ParamsFor(c, layers);
  Run(cuda::select_topk, {c.n_lists, static_cast<uint32_t>(layers.all.size())},
      cuda::kSelectThreads, p, Schedule(turn));
  ExpectSelected(layers, "select_topk", turn);
}

// The launches for longer lists also work for short ones.
void SelectLong(const Case& c, const Layers& given, uint32_t turn) {
  const Layers layers = given;
  cuda::SelectParams p = ParamsFor(c, layers);
  for (const Layer& layer : layers.all) {
    p.n_chunks = std::max(p.n_chunks, cuda::LongChunks(layer.n_tokens));
  }
  const uint32_t n_layers = static_cast<uint32_t>(layers.all.size());
  std::vector<uint32_t> scratch(size_t{n_layers} * c.n_lists *
                                cuda::LongWords(p.n_chunks));
  p.scratch = Address(scratch.data());
  const simt::Dim3 grid = {p.n_chunks, c.n_lists, n_layers};
  const auto run = [&](void (*kernel)(const cuda::SelectParams&)) {
    Run(kernel, grid, cuda::kSelectThreads, p, Schedule(turn, 1 + turn % 3));
  };
  for (p.round = 0; p.round < 3; ++p.round) run(cuda::select_long_digit);
  run(cuda::select_long_count);
  run(cuda::select_long_emit);
  ExpectSelected(layers, "select_long", turn);
  for (size_t i = 0; i < scratch.size(); ++i) {
    const size_t word = i % cuda::LongWords(p.n_chunks);
    if (word <= cuda::kBins && scratch[i] != 0) Fail("scratch is left dirty");
  }
}

Case RandomCase(Random& random, uint32_t turn) {
  Case c = {};
  c.input = static_cast<cuda::SelectInput>(turn / 2 % 3);
  c.n_lists = 1 + random.Below(2);
  if (random.Below(2) == 0) c.n_sink = random.Below(6);
  if (random.Below(2) == 0) c.n_recent = random.Below(40);
  c.first_slot = turn % 3 == 1 ? 37 * turn % 5000 : 0;
  c.kind = turn % kScoreKinds;
  c.lead = random.Below(4);
  c.higher_wins = random.Below(2) == 0;
  c.has_token_counts = random.Below(2) == 0;
  c.has_keep_counts = c.has_token_counts || random.Below(2) == 0;
  return c;
}

// Keeps at least what is forced.
uint32_t RandomKeep(const Case& c, uint32_t n_tokens, Random& random) {
  const uint32_t least = c.n_sink + c.n_recent;
  const uint32_t most = n_tokens;
  const uint32_t choices[] = {least, least + (least < most), most,
                              most - (least < most),
                              least + random.Below(most - least + 1)};
  return choices[random.Below(5)];
}

Layers RandomLayers(const Case& c, const uint32_t* sizes, uint32_t n_sizes,
                    Random& random) {
  const uint32_t n_layers = 1 + random.Below(2);
  Layers layers = {{},
                   ListTable(c.n_lists, c.has_token_counts, 2),
                   ListTable(c.n_lists, c.has_keep_counts, 1)};
  const uint32_t least = c.n_sink + c.n_recent;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = std::max(sizes[random.Below(n_sizes)], least);
    layers.tokens.AddLayer(least, most, random);
    const uint32_t n_keep = RandomKeep(c, most, random);
    for (uint32_t list = 0; list < c.n_lists; ++list) {
      layers.keep.AddList(c.has_keep_counts
                              ? RandomKeep(c, layers.tokens.Of(l, list), random)
                              : n_keep);
    }
    layers.all.push_back(MakeLayer(c, layers.tokens, layers.keep, l, random));
  }
  return layers;
}

void TestShortLists() {
  constexpr uint32_t kSizes[] = {0,   1,   2,   3,    4,    5,    31,
                                 127, 128, 129, 2047, 2048, 2050, 4099};
  Random random(TestSeed("topk/short"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    Case c = RandomCase(random, turn);
    if (turn % 5 == 0) c.keep_stride = 4120;
    SelectShort(c, RandomLayers(c, kSizes, std::size(kSizes), random), turn);
  }
}

// Chunks have 8,192 keys, fewer if a list does not begin at a multiple of 16 bytes.
void TestLongLists() {
  constexpr uint32_t kSizes[] = {5, 8188, 8189, 8192, 16384, 16387, 20001};
  Random random(TestSeed("topk/long"));
  for (uint32_t turn = 0; turn < 16; ++turn) {
    const Case c = RandomCase(random, turn);
    SelectLong(c, RandomLayers(c, kSizes, std::size(kSizes), random), turn);
  }
  // Three chunks work side by side, and one thread is far behind all others.
  constexpr uint32_t kThreeChunks = 20001;
  for (uint32_t turn = 0; turn < 18; ++turn) {
    const Case c = RandomCase(random, turn);
    SelectLong(c, RandomLayers(c, &kThreeChunks, 1, random), 12 * turn + 5);
  }
}

// ---- Protected positions, whole blocks ----

// A layer's slots after an eviction, from one of them on.
struct Slots {
  uint32_t first;
  uint32_t n_tokens;
  uint32_t n_kept;
  uint32_t tail;
  std::vector<int32_t> kept;  // [n_lists, n_kept]
};

Slots RandomSlots(uint32_t n_lists, Random& random) {
  Slots s = {};
  s.first = random.Below(2) == 0 ? 0 : random.Below(300);
  s.n_tokens = 1 + random.Below(700);
  s.n_kept = random.Below(3) == 0 ? 0 : random.Below(s.first + s.n_tokens + 1);
  for (uint32_t list = 0; list < n_lists; ++list) {
    int32_t position = 0;
    for (uint32_t i = 0; i < s.n_kept; ++i) {
      position += static_cast<int32_t>(random.Below(3));
      s.kept.push_back(position++);
    }
  }
  s.tail = 3 * s.n_kept + random.Below(50);
  return s;
}

int64_t PositionOf(const Slots& s, uint32_t list, uint32_t slot) {
  slot += s.first;
  return slot < s.n_kept ? s.kept[size_t{list} * s.n_kept + slot]
                         : int64_t{s.tail} + slot - s.n_kept;
}

// A list's expected keys: each block's key is that of its mean, or the forced one
// if any of its slots must stay or it is not full.
void ExpectedKeys(const std::vector<float>& scores, uint32_t block,
                  const std::vector<bool>& stays, uint32_t* keys) {
  const auto n = static_cast<uint32_t>(scores.size());
  std::vector<float> means(n);
  AverageBlocks(SimdTargetAt(0), scores.data(), n, block, means.data());
  ScoresToKeys(SimdTargetAt(0), means.data(), n, keys);
  for (uint32_t begin = 0; begin < n; begin += block) {
    const uint32_t end = std::min(n, begin + block);
    const auto first = stays.begin() + begin;
    if (end - begin < block ||
        std::find(first, stays.begin() + end, true) != stays.begin() + end) {
      std::fill(keys + begin, keys + end, kForcedKey);
    }
  }
}

// Makes keys in place of scores, pins, and compares with pinning by search.
void TestPinnedKeys() {
  constexpr uint32_t kBlocks[] = {1, 1, 2, 7, 16, 300};
  Random random(TestSeed("topk/pinned"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    const uint32_t block = kBlocks[turn % std::size(kBlocks)];
    Case c = RandomCase(random, turn);
    if (c.input == cuda::kSelectKeys) c.input = cuda::kSelectScores;
    const Slots slots = RandomSlots(c.n_lists, random);
    const uint32_t n = slots.n_tokens;
    c.n_sink = std::min(c.n_sink, n);
    c.n_recent = std::min(c.n_recent, n - c.n_sink);

    cuda::PinParams pin = {};
    pin.n_lists = c.n_lists;
    pin.block = block;
    int32_t position = static_cast<int32_t>(random.Below(5));
    const uint32_t n_positions = turn % 4 == 0 ? 500 : random.Below(9);
    for (; pin.n_positions < n_positions; ++pin.n_positions) {
      pin.positions[pin.n_positions] = position;
      position += 1 + static_cast<int32_t>(random.Below(5));
    }

    Layers layers = {
        {}, ListTable(c.n_lists, false, 1), ListTable(c.n_lists, false, 1)};
    layers.tokens.AddLayer(n, n, random);
    layers.keep.AddLayer(c.n_sink + c.n_recent, c.n_sink + c.n_recent, random);
    layers.all.push_back(MakeLayer(c, layers.tokens, layers.keep, 0, random));
    const Layer& layer = layers.all[0];
    std::vector<uint32_t> words = layer.words;
    std::vector<uint32_t> expected = words;
    uint32_t* const keys = expected.data() + c.lead;
    const std::set<int64_t> pinned(pin.positions,
                                   pin.positions + pin.n_positions);
    for (uint32_t list = 0; list < c.n_lists; ++list) {
      std::vector<float> scores(n);
      std::vector<bool> stays(n);
      for (uint32_t i = 0; i < n; ++i) {
        scores[i] = std::bit_cast<float>(keys[list * n + i]);
        stays[i] = i < c.n_sink || i >= n - c.n_recent ||
                   pinned.contains(PositionOf(slots, list, i));
      }
      ExpectedKeys(scores, block, stays, keys + size_t{list} * n);
    }

    cuda::SelectParams p = ParamsFor(c, layers);
    p.lists.block = block;
    if (c.input == cuda::kSelectScores) {
      p.layers[0].scores = Address(words.data() + c.lead);
    }
    p.layers[0].keep = Address(words.data() + c.lead);
    Run(cuda::make_keys, {3, c.n_lists}, cuda::kKeysThreads, p, Schedule(turn));
    pin.layers[0] = {
        Address(words.data() + c.lead),
        {Address(slots.kept.data()), slots.n_kept, slots.tail, 0, slots.first},
        n,
        0};
    Run(cuda::pin_positions, {2, c.n_lists}, cuda::kKeysThreads, pin,
        Schedule(turn));
    ExpectSame(words, expected, "make_keys, pin_positions", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestShortLists();
  kvevict::TestLongLists();
  kvevict::TestPinnedKeys();
}
