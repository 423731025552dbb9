// Norms of keys in any layout, against double precision.
#include "cuda/kernels/key_norm.cu"

#include <bit>
#include <cmath>
#include <numeric>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

enum DType : uint32_t { kF32 = 1, kF16 = 2, kBF16 = 3 };

uint32_t BytesOf(uint32_t dtype) { return dtype == kF32 ? 4 : 2; }

// The stored form of a number with three bits after the point, which all dtypes
// hold.
uint32_t Encode(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == kF32) return bits;
  if (dtype == kBF16) return bits >> 16;
  if (v == 0.0f) return bits >> 16;
  return (bits >> 16 & 0x8000) | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

struct Case {
  uint32_t dtype;
  uint32_t head_dim;
  uint32_t n_heads;
  uint32_t block_size;  // 0: contiguous
  uint32_t gap;         // elements between rows
  bool transposed;      // elements apart
  bool has_tables;      // a block table per head
};

// A layer: keys [head, token, element], and where they lie.
struct Layer {
  uint32_t n_tokens;
  std::vector<float> keys;
  std::vector<uint8_t> memory;
  std::vector<int32_t> table;
  std::vector<float> scores;
};

int64_t RowStride(const Case& c) {
  return c.transposed ? BytesOf(c.dtype)
                      : int64_t{c.head_dim + c.gap} * BytesOf(c.dtype);
}

// Rows of a head lie together, in blocks of block_size or of n_most.
int64_t HeadStride(const Case& c, uint32_t n_most) {
  const uint32_t rows = c.block_size == 0 ? n_most : c.block_size;
  return int64_t{c.head_dim + c.gap} * rows * BytesOf(c.dtype);
}

Layer MakeLayer(const Case& c, const ListTable& tokens, size_t l,
                uint32_t n_most, Random& random) {
  Layer layer = {};
  for (uint32_t h = 0; h < c.n_heads; ++h) {
    layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, h));
  }
  const uint32_t block = c.block_size == 0 ? n_most : c.block_size;
  const uint32_t n_blocks = (n_most + block - 1) / block;
  const int64_t head_stride = HeadStride(c, n_most);
  const int64_t block_stride = head_stride * c.n_heads;
  layer.memory.assign(static_cast<size_t>(block_stride) * n_blocks + 16, 0xff);
  for (uint32_t h = 0; h < (c.has_tables ? c.n_heads : 1); ++h) {
    std::vector<int32_t> table(n_blocks);
    std::iota(table.begin(), table.end(), 0);
    for (uint32_t i = n_blocks; i > 1; --i) {
      std::swap(table[i - 1], table[random.Below(i)]);
    }
    layer.table.insert(layer.table.end(), table.begin(), table.end());
  }
  layer.keys.resize(size_t{c.n_heads} * layer.n_tokens * c.head_dim);
  layer.scores.assign(size_t{c.n_heads} * layer.n_tokens, 77.0f);
  const uint32_t rows = c.block_size == 0 ? n_most : c.block_size;
  for (uint32_t h = 0; h < c.n_heads; ++h) {
    for (uint32_t t = 0; t < tokens.Of(l, h); ++t) {
      const int32_t id =
          c.block_size == 0
              ? 0
              : layer.table[(c.has_tables ? h * n_blocks : 0) + t / block];
      for (uint32_t d = 0; d < c.head_dim; ++d) {
        const float v =
            static_cast<float>(static_cast<int>(random.Below(65)) - 32) / 8.0f;
        layer.keys[(size_t{h} * layer.n_tokens + t) * c.head_dim + d] = v;
        const int64_t element = c.transposed
                                    ? int64_t{d} * rows * BytesOf(c.dtype)
                                    : int64_t{d} * BytesOf(c.dtype);
        const int64_t at = id * block_stride + h * head_stride +
                           t % block * RowStride(c) + element;
        const uint32_t bits = Encode(c.dtype, v);
        std::memcpy(layer.memory.data() + at, &bits, BytesOf(c.dtype));
      }
    }
  }
  return layer;
}

void Check(const Case& c, bool has_counts, Random& random, uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  constexpr uint32_t kMost = 150;
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
  }
  std::vector<Layer> layers;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeLayer(c, tokens, l, kMost, random));
  }
  const uint32_t element = BytesOf(c.dtype);
  const uint32_t row_bytes = c.head_dim * element;
  const uint32_t block = c.block_size == 0 ? kMost : c.block_size;
  cuda::KeyNormParams p = {};
  p.keys = {RowStride(c),
            HeadStride(c, kMost),
            c.transposed ? int64_t{block} * element : int64_t{element},
            HeadStride(c, kMost) * c.n_heads,
            c.block_size,
            c.has_tables ? (kMost + block - 1) / block : 0};
  p.tokens = tokens.table();
  p.dtype = c.dtype;
  p.head_dim = c.head_dim;
  p.n_kv_heads = c.n_heads;
  p.wide = !c.transposed && row_bytes % 16 == 0 &&
           p.keys.row_stride % 16 == 0 && p.keys.head_stride % 16 == 0;
  p.lanes = cuda::KeyNormLanes(p.wide != 0 ? row_bytes / 16 : c.head_dim);
  for (size_t l = 0; l < n_layers; ++l) {
    uint8_t* base = layers[l].memory.data();
    p.layers[l] = {Address(base), Address(layers[l].table.data()),
                   Address(layers[l].scores.data()), layers[l].n_tokens,
                   tokens.FirstOf(l)};
    if (Address(base) % 16 != 0) Fail("memory is not aligned");
  }
  const uint32_t rows = cuda::KeyNormBlockRows(p.lanes);
  Run(cuda::key_norms, {(kMost + rows - 1) / rows, c.n_heads, n_layers},
      cuda::kNormThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const Layer& layer = layers[l];
    for (uint32_t i = 0; i < c.n_heads * layer.n_tokens; ++i) {
      const uint32_t head = i / layer.n_tokens;
      const bool is_row = i % layer.n_tokens < tokens.Of(l, head);
      double sum = 0.0;  // exact: multiples of 1/64 below 2^24
      for (uint32_t d = 0; d < c.head_dim; ++d) {
        const double v = layer.keys[size_t{i} * c.head_dim + d];
        sum += v * v;
      }
      const float expected =
          is_row ? -std::sqrt(static_cast<float>(sum)) : 77.0f;
      if (layer.scores[i] == expected) continue;
      Fail("case %u, layer %zu: score %u is %.9g, not %.9g", turn, l, i,
           static_cast<double>(layer.scores[i]), static_cast<double>(expected));
    }
  }
}

void TestNorms() {
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 40, 41, 64, 80, 128, 300};
  Random random(TestSeed("key_norm"));
  for (uint32_t turn = 0; turn < Turns(90); ++turn) {
    Case c = {};
    c.dtype = 1 + turn % 3;
    c.head_dim = kDims[turn / 3 % std::size(kDims)];
    c.n_heads = 1 + random.Below(2);
    c.block_size = random.Below(2) == 0 ? 0 : 1 + random.Below(40);
    c.gap = random.Below(3) == 0 ? random.Below(9) : 0;
    c.transposed = c.gap == 0 && random.Below(5) == 0;
    c.has_tables = c.block_size > 0 && random.Below(2) == 0;
    Check(c, random.Below(2) == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestNorms(); }
