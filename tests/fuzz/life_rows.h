// The rows of a sequence in the fuzzer, in some layout that views can describe.
#ifndef KVEVICT_TESTS_FUZZ_LIFE_ROWS_H_
#define KVEVICT_TESTS_FUZZ_LIFE_ROWS_H_

#include <algorithm>
#include <numeric>

#include "tests/fuzz/fuzz.h"

namespace kvevict {

inline constexpr uint32_t kLayers = 2;
inline constexpr uint32_t kHeads = 2;
inline constexpr uint32_t kMaxTokens = 48;

// A key of one element per token, head and layer: side by side, or in blocks of its
// own by a table for each head.
class LifeRows {
 public:
  explicit LifeRows(Draw& draw) : kind_(static_cast<Kind>(draw.Below(3))) {
    uint32_t state = draw.Below(65536);
    for (uint32_t l = 0; l < kLayers; ++l) {
      int32_t* const ids = &ids_[l][0][0];
      std::iota(ids, ids + kCells, 0);
      for (uint32_t i = kCells - 1; i > 0; --i) {
        state = state * 1103515245 + 12345;
        std::swap(ids[i], ids[(state >> 16) % (i + 1)]);
      }
      for (uint32_t i = 0; i < kCells; ++i) {
        (&addresses_[l][0][0])[i] =
            reinterpret_cast<uint64_t>(&keys_[l][0][0] + ids[i]);
      }
    }
  }
  LifeRows(const LifeRows&) = delete;
  LifeRows& operator=(const LifeRows&) = delete;

  bool has_tables() const { return kind_ != kContiguous; }

  float& Key(uint32_t layer, uint32_t head, uint32_t slot) {
    switch (kind_) {
      case kIds:
        return (&keys_[layer][0][0])[ids_[layer][head][slot]];
      case kAddresses:
        return *reinterpret_cast<float*>(addresses_[layer][head][slot]);
      case kContiguous:
        break;
    }
    return keys_[layer][slot][head];
  }

  kvevict_view View(uint32_t layer) {
    kvevict_view view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = kHeads;
    view.k.dtype = KVEVICT_DTYPE_F32;
    view.k.head_dim = 1;
    if (kind_ != kAddresses) {
      view.k.data = reinterpret_cast<uint64_t>(&keys_[layer][0][0]);
    }
    if (kind_ == kContiguous) {
      view.k.token_stride_bytes = kHeads * sizeof(float);
      view.k.head_stride_bytes = sizeof(float);
      return view;
    }
    view.block_size = 1;
    view.block_table_head_stride = kMaxTokens;
    if (kind_ == kIds) {
      view.k.block_stride_bytes = sizeof(float);
      view.block_table = &ids_[layer][0][0];
      view.block_table_len = kCells;
    } else {
      view.k.address_table =
          reinterpret_cast<uint64_t>(&addresses_[layer][0][0]);
      view.k.address_table_len = kCells;
    }
    return view;
  }

 private:
  enum Kind { kContiguous, kIds, kAddresses };
  static constexpr uint32_t kCells = kHeads * kMaxTokens;

  const Kind kind_;
  float keys_[kLayers][kMaxTokens][kHeads] = {};
  int32_t ids_[kLayers][kHeads][kMaxTokens];
  uint64_t addresses_[kLayers][kHeads][kMaxTokens];
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_FUZZ_LIFE_ROWS_H_
