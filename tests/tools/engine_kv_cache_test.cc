// Caches of every kind live at random beside plain rows. The library reads them through
// their views. recall_program_test.cc has their bytes.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tools/engine/kv_cache.h"
#include "tools/engine/kvevict_error.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 2, kCapacity = 43, kSteps = 150;
constexpr uint32_t kKDim = 8, kVDim = 4;

struct Case {
  const char* name;
  kvevict_dtype dtype;
  uint32_t code_bits = 0;  // of a quantized dtype
  KvLayout layout = {};
  bool has_biases = false;
};

const Case kCases[] = {
    {"f32", KVEVICT_DTYPE_F32},
    {"f16", KVEVICT_DTYPE_F16},
    {"bf16 in blocks", KVEVICT_DTYPE_BF16, 0, {.block_size = 4}},
    {"u8", KVEVICT_DTYPE_U8, 8},
    {"u4 in blocks", KVEVICT_DTYPE_U4, 4, {.block_size = 8}},
    {"u8 in groups",
     KVEVICT_DTYPE_U8,
     8,
     {.group_tokens = 8, .recent_tokens = 3}},
    {"u4 in groups",
     KVEVICT_DTYPE_U4,
     4,
     {.group_tokens = 4, .recent_tokens = 6}},
    {"biases", KVEVICT_DTYPE_F32, 0, {}, true},
    {"biases in blocks", KVEVICT_DTYPE_F16, 0, {.block_size = 4}, true},
};

KvShape ShapeOf(const Case& c) {
  return {.n_layers = kLayers,
          .n_kv_heads = kHeads,
          .k_head_dim = kKDim,
          .v_head_dim = kVDim,
          .dtype = c.dtype,
          .capacity = kCapacity,
          .layout = c.layout,
          .has_biases = c.has_biases};
}

struct Row {
  std::vector<float> k, v;
  float bias = 0;
};

class Life {
 public:
  explicit Life(const Case& c) : c_(c), cache_(ShapeOf(c)) {}

  void Run() {
    for (step_ = 0; step_ < kSteps; ++step_) {
      const uint32_t layer = Below(kLayers);
      const uint32_t least = std::ranges::min(cache_.lengths(layer));
      if (const uint32_t what = Below(6); what == 0) {
        Forget(layer, Below(1 + least / 2));
      } else if (what == 1) {
        EndEviction(layer, least);
      } else if (what == 2) {
        KvCache copy(ShapeOf(c_));
        copy.CopyFrom(cache_);
        cache_ = std::move(copy);
      } else {
        Append(layer);
      }
      for (uint32_t l = 0; l < kLayers; ++l) ExpectRows(l);
    }
    cr_expect(n_full_ > 0, "%s: it was never full", c_.name);
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // Sixteenths in [-8, 8), which 16 bits hold exactly.
  std::vector<float> Draw(size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(Below(256)) / 16 - 8;
    return values;
  }

  // Rows at the end that are not quantized, if groups of rows are.
  uint32_t RecentOf(uint32_t layer) const {
    return c_.layout.group_tokens == 0
               ? 0
               : cache_.length(layer) - cache_.View(layer).first_recent;
  }

  void Append(uint32_t layer) {
    const uint32_t room = kCapacity - cache_.length(layer);
    const uint32_t n = std::min(Below(12), room);
    n_full_ += n == room;
    // Rows of tokens are wider than the cache's.
    constexpr uint32_t kKStride = kHeads * kKDim + 3,
                       kVStride = kHeads * kVDim + 1;
    const auto k = Draw(n * kKStride + 1), v = Draw(n * kVStride + 1);
    cache_.Append(layer, n, k.data(), kKStride, v.data(), kVStride);
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        const float* const of_k = &k[i * kKStride + h * kKDim];
        const float* const of_v = &v[i * kVStride + h * kVDim];
        rows_[layer][h].push_back({{of_k, of_k + kKDim}, {of_v, of_v + kVDim}});
      }
    }
    // Groups are quantized once enough rows follow them.
    const uint32_t recent = RecentOf(layer), least = c_.layout.recent_tokens;
    cr_expect(recent <= least + c_.layout.group_tokens &&
                  recent >= std::min(least, n),
              "%s: %u of %u rows are recent", c_.name, recent,
              cache_.length(layer));
  }

  void Forget(uint32_t layer, uint32_t n) {
    cache_.set_length(layer, cache_.length(layer) - n);
    for (auto& rows : rows_[layer]) rows.resize(rows.size() - n);
  }

  // Heads keep their first rows and those that are not quantized.
  void EndEviction(uint32_t layer, uint32_t least) {
    const uint32_t recent = RecentOf(layer);
    uint32_t n = recent + Below(least - recent + 1);
    std::vector<uint32_t> lengths;
    for (auto& rows : rows_[layer]) {
      if (c_.layout.group_tokens == 0) n = Below(least + 1);
      rows.erase(rows.begin() + (n - recent), rows.end() - recent);
      lengths.push_back(n);
    }
    cache_.set_lengths(layer, lengths);
  }

  // The layer's rows, [slots, heads, k_head_dim] and then those of values.
  std::vector<float> Read(uint32_t layer) {
    const uint32_t n = cache_.length(layer);
    std::vector<float> all(n * kHeads * (kKDim + kVDim) + 1);
    kvevict_view view = cache_.View(layer), plain = KVEVICT_VIEW_INIT;
    Check(kvevict_view_validate(&view, n));
    if (c_.has_biases) view.n_companions = 0;
    plain.n_kv_heads = kHeads;
    plain.k =
        kvevict_plane_token_major(all.data(), KVEVICT_DTYPE_F32, kHeads, kKDim);
    plain.v = kvevict_plane_token_major(&all[n * kHeads * kKDim],
                                        KVEVICT_DTYPE_F32, kHeads, kVDim);
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = n;
    move.view = &view;
    move.destination = &plain;
    Check(kvevict_compact(context_.get(), &move, 1, nullptr, 0, nullptr));
    return all;
  }

  float& BiasAt(uint32_t layer, uint32_t head, uint32_t slot) {
    const kvevict_view view = cache_.View(layer);
    if (view.block_size > 0) {
      slot = static_cast<uint32_t>(view.block_table[slot / view.block_size]) *
                 view.block_size +
             slot % view.block_size;
    }
    return reinterpret_cast<float*>(
        view.companions[0].data)[slot * kHeads + head];
  }

  void ExpectRows(uint32_t layer) {
    const std::vector<float> all = Read(layer);
    const uint32_t n = cache_.length(layer);
    const float* const values = &all[n * kHeads * kKDim];
    for (uint32_t h = 0; h < kHeads; ++h) {
      cr_assert(cache_.lengths(layer)[h] == rows_[layer][h].size());
      for (uint32_t slot = 0; slot < rows_[layer][h].size(); ++slot) {
        Row& row = rows_[layer][h][slot];
        // Half a step of codes over [-8, 8), and the rounding of their scale and minimum. A
        // group that fills up after an eviction is quantized once more.
        const bool is_exact = c_.code_bits == 0 || slot >= n - RecentOf(layer);
        const uint32_t n_times = c_.layout.group_tokens == 0 ? 1 : 2;
        const float most =
            is_exact ? 0.0f
                     : static_cast<float>(n_times) *
                           (8.0f / ((1u << c_.code_bits) - 1) + 0.02f);
        for (uint32_t e = 0; e < kKDim + kVDim; ++e) {
          const float wanted = e < kKDim ? row.k[e] : row.v[e - kKDim];
          const uint32_t place = slot * kHeads + h;
          const float is = e < kKDim ? all[place * kKDim + e]
                                     : values[place * kVDim + e - kKDim];
          cr_assert(std::fabs(is - wanted) <= most,
                    "%s, step %u: layer %u, head %u, slot %u has %g, not %g",
                    c_.name, step_, layer, h, slot, double{is}, double{wanted});
        }
        if (!c_.has_biases) continue;
        // New rows have none.
        float& bias = BiasAt(layer, h, slot);
        cr_assert(bias == row.bias, "%s, step %u: slot %u has bias %g", c_.name,
                  step_, slot, double{bias});
        bias = row.bias = static_cast<float>(1 + Below(9));
      }
    }
    cr_expect(cache_.is_ragged(layer) ==
              (rows_[layer][0].size() != rows_[layer][1].size()));
  }

  const Case c_;
  ThreadPool pool_{1};
  const LibraryContext context_ = CreateContext(pool_, nullptr);
  KvCache cache_;
  std::vector<Row> rows_[kLayers][kHeads];
  std::mt19937 random_{1};
  uint32_t step_ = 0, n_full_ = 0;
};

Test(engine_kv_cache, has_the_rows_that_it_was_given) {
  for (const Case& c : kCases) Life(c).Run();
}

}  // namespace
}  // namespace kvevict::tools
