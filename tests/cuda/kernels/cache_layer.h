// A layer of a cache in any layout, for the tests of kernels that read its rows.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "tests/cuda/kernels/cache_planes.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {

// Every dtype takes its turn with every size of rows.
inline PlaneShape PlaneOfTurn(uint32_t turn, uint32_t n_most, Random& random) {
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 40, 41, 64, 80, 128, 300, 576};
  return RandomPlane(DTypeOfTurn(turn),
                     kDims[turn / kNDTypes % std::size(kDims)],
                     1 + random.Below(2), n_most, random);
}

// Rows [head, token, element] and their places.
struct CacheLayer {
  uint32_t n_tokens = 0;  // of any head, the most
  std::vector<float> rows;
  std::vector<uint8_t> memory;
  std::vector<int32_t> tables;
  std::vector<float> scores;  // [head, token]: 77 if nothing is written

  const float* Row(const PlaneShape& s, uint32_t head, uint32_t token) const {
    return rows.data() + (size_t{head} * n_tokens + token) * s.head_dim;
  }
};

// Changes a row; earlier ones of its head are before it.
using ChangeRow = std::function<void(uint32_t token, float* row)>;

// Layer l of the table. Elements are eighths of at most 6.5, or codes near them, and
// every channel has a mean of its own. Some rows hold an element of `odd`, if there is
// one. If rows repeat, some are like earlier ones. `tables`: another plane's.
inline CacheLayer MakeCacheLayer(const PlaneShape& s, const ListTable& tokens,
                                 size_t l, const std::vector<float>& odd,
                                 Random& random, bool rows_repeat = false,
                                 const std::vector<int32_t>* tables = nullptr,
                                 const ChangeRow& change = nullptr) {
  CacheLayer layer;
  for (uint32_t h = 0; h < s.n_heads; ++h) {
    layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, h));
  }
  layer.memory.assign(static_cast<size_t>(s.block_stride()) * s.n_blocks() + 16,
                      0xff);
  if (Address(layer.memory.data()) % 16 != 0) Fail("memory is not aligned");
  layer.tables = tables == nullptr ? RandomTables(s, random) : *tables;
  layer.rows.resize(size_t{s.n_heads} * layer.n_tokens * s.head_dim);
  layer.scores.assign(size_t{s.n_heads} * layer.n_tokens, 77.0f);
  std::vector<int> means(s.head_dim);
  for (int& mean : means) mean = static_cast<int>(random.Below(41)) - 20;
  float* row = layer.rows.data();
  for (uint32_t h = 0; h < s.n_heads; ++h) {
    const int32_t* const table =
        layer.tables.data() + (s.table_heads > 1 ? h * s.n_blocks() : 0);
    for (uint32_t t = 0; t < layer.n_tokens; ++t, row += s.head_dim) {
      if (t >= tokens.Of(l, h)) continue;
      for (uint32_t d = 0; d < s.head_dim; ++d) {
        const int step = static_cast<int>(random.Below(65)) - 32;
        row[d] = static_cast<float>(means[d] + step) / 8.0f;
      }
      if (rows_repeat && t > 0 && random.Below(10) == 0) {
        std::copy_n(row - (1 + random.Below(t)) * s.head_dim, s.head_dim, row);
      }
      if (!odd.empty() && random.Below(30) == 0) {
        row[random.Below(s.head_dim)] =
            odd[random.Below(static_cast<uint32_t>(odd.size()))];
      }
      if (change != nullptr) change(t, row);
      if (t >= s.recent.first) {
        std::copy_n(s.recent.Row(h, t), s.head_dim, row);
        continue;
      }
      const int64_t block = s.block_size == 0 ? 0 : table[t / s.rows()];
      uint8_t* const to = layer.memory.data() + block * s.block_stride() +
                          h * s.head_stride() + t % s.rows() * s.row_stride();
      if (IsQuantized(s.dtype)) {
        const auto number = [&](const Numbers& of, float otherwise) {
          return [&of, &s, block, h, t, otherwise](uint32_t e) {
            return of.of == Numbers::kNone
                       ? otherwise
                       : of.values[of.Index(static_cast<uint32_t>(block), h,
                                            t % s.rows(), s.rows(), e)];
          };
        };
        const std::vector<uint8_t> bytes =
            EncodeRow(s.dtype, s.head_dim, number(s.scales, 1.0f),
                      number(s.minima, 0.0f), random, row);
        const bool apart = BlockElements(s.dtype) == 1;
        for (uint32_t i = 0; i < bytes.size(); ++i) {
          to[apart ? s.element(i) : i] = bytes[i];
        }
        continue;
      }
      for (uint32_t d = 0; d < s.head_dim; ++d) {
        const uint32_t bits = EncodeElement(s.dtype, row[d]);
        std::memcpy(to + s.element(d), &bits,
                    static_cast<size_t>(s.element_bytes()));
      }
    }
  }
  return layer;
}

// What the rows of a head should get, and how far off it may be.
struct Wanted {
  std::vector<double> values;
  std::vector<double> bounds;  // none: bit for bit

  Wanted() = default;
  explicit Wanted(size_t n) : values(n), bounds(n) {}
};

// A launch over layers of one plane, whose rows have scores.
struct CacheLaunch {
  PlaneShape shape;
  ListTable tokens;
  std::vector<CacheLayer> layers = {};

  CacheLaunch(const PlaneShape& s, uint32_t n_layers, uint32_t least,
              Random& random)
      : shape(s), tokens(s.n_heads, random.Below(2) == 0, 2) {
    for (uint32_t l = 0; l < n_layers; ++l) {
      tokens.AddLayer(least, least + random.Below(s.n_most + 1 - least),
                      random);
    }
  }

  // One turn in four has elements that are not finite.
  void Draw(uint32_t turn, Random& random, bool rows_repeat = false,
            const ChangeRow& change = nullptr) {
    std::vector<float> odd;
    if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
    for (size_t l = 0; l < n_layers(); ++l) {
      layers.push_back(MakeCacheLayer(shape, tokens, l, odd, random,
                                      rows_repeat, nullptr, change));
    }
  }

  uint32_t n_layers() const { return tokens.n_layers(); }
  uint32_t n_longest() const {
    uint32_t most = 0;
    for (size_t l = 0; l < n_layers(); ++l) {
      most = std::max(most, tokens.Most(l));
    }
    return most;
  }
  uint32_t n_all_heads() const { return n_layers() * shape.n_heads; }
  simt::Dim3 Grid(uint32_t n, uint32_t per_block) const {
    return {(n + per_block - 1) / per_block, shape.n_heads, n_layers()};
  }

  // The arguments that all kernels of keys have.
  template <class Params>
  Params Lend() {
    Params p = {};
    p.keys = shape.cache_rows();
    p.tokens = tokens.table();
    if constexpr (requires { p.n_kv_heads; }) p.n_kv_heads = shape.n_heads;
    for (size_t l = 0; l < layers.size(); ++l) {
      auto& layer = p.layers[l];
      layer.keys = Address(layers[l].memory.data());
      layer.block_table = Address(layers[l].tables.data());
      if constexpr (requires { layer.scores; }) {
        layer.scores = Address(layers[l].scores.data());
      }
      layer.n_tokens = layers[l].n_tokens;
      layer.first_count = tokens.FirstOf(l);
    }
    return p;
  }

  // wanted(layer, head, n) tells of n tokens. Nothing is written behind them.
  template <class WantedOf>
  void Compare(uint32_t turn, const WantedOf& wanted) const {
    for (size_t l = 0; l < layers.size(); ++l) {
      CompareRows(layers[l].scores, 1, l, 77.0f, turn, wanted);
    }
  }
  // The same of so many rows of results per head, [head, row, token].
  template <class WantedOf>
  void CompareRows(const std::vector<float>& results, uint32_t n_rows, size_t l,
                   float guard, uint32_t turn, const WantedOf& wanted) const {
    const uint32_t n = layers[l].n_tokens;
    for (uint32_t h = 0; h < shape.n_heads; ++h) {
      const uint32_t n_held = tokens.Of(l, h);
      const Wanted of_head = wanted(l, h, n_held);
      if (of_head.values.empty()) continue;
      for (uint32_t i = 0; i < n_rows * n; ++i) {
        const float got = results[size_t{h} * n_rows * n + i];
        const size_t at = size_t{i / n} * n_held + i % n;
        const bool is_held = i % n < n_held;
        const double want = is_held ? of_head.values[at] : guard;
        const bool is_near = is_held && !of_head.bounds.empty() &&
                             std::abs(got - want) <= of_head.bounds[at];
        if (is_near || BitsOf(got) == BitsOf(static_cast<float>(want))) {
          continue;
        }
        Fail(
            "case %u, layer %zu, head %u, dim %u: row %u, token %u of %u is "
            "%.9g, not %.9g",
            turn, l, h, shape.head_dim, i / n, i % n, n_held,
            static_cast<double>(got), want);
      }
    }
  }
};

// Biases of slots, in the blocks of the keys.
inline PlaneShape RandomBiases(const PlaneShape& keys, Random& random) {
  PlaneShape biases =
      RandomPlane(cuda::kF32, 1, keys.n_heads, keys.n_most, random);
  biases.block_size = keys.block_size;
  biases.table_heads = keys.table_heads;
  return biases;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_
