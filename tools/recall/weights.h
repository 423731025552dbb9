// The recall model's weights: computed, not trained.
#ifndef KVEVICT_TOOLS_RECALL_WEIGHTS_H_
#define KVEVICT_TOOLS_RECALL_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/recall/vocabulary.h"

namespace kvevict::tools {

inline constexpr uint32_t kLayers = 2;
inline constexpr uint32_t kQHeads = 4;
inline constexpr uint32_t kKvHeads = 2;
inline constexpr uint32_t kHeadDim = 128;
inline constexpr uint32_t kModelDim = 192;
inline constexpr double kRopeBase = 1e6;

// The layout of the residual stream.
inline constexpr uint32_t kConstDim = 0;      // 1 for every token
inline constexpr uint32_t kBosDim = 1;        // 1 for BOS
inline constexpr uint32_t kSeparatorDim = 2;  // 1 for SEP
inline constexpr uint32_t kCodeDims = 8;      // the token's code
inline constexpr uint32_t kPreviousDims =
    40;                                   // the previous token's, by layer 0
inline constexpr uint32_t kOutDims = 72;  // the answer's, by layer 1
inline constexpr uint32_t kJunkInDims = 104;
inline constexpr uint32_t kJunkOutDims = 136;  // never read

inline constexpr uint32_t kRopePairs = kHeadDim / 2;

// Radians per position of pair f, dims (f, f + kRopePairs).
double RopeFrequency(uint32_t f);

// Row-major [n_rows, n_cols].
struct Matrix {
  Matrix(uint32_t n_rows, uint32_t n_cols)
      : n_rows(n_rows),
        n_cols(n_cols),
        values(static_cast<size_t>(n_rows) * n_cols) {}

  float& at(uint32_t row, uint32_t col) {
    return values[static_cast<size_t>(row) * n_cols + col];
  }
  const float* row(uint32_t row) const {
    return values.data() + static_cast<size_t>(row) * n_cols;
  }

  uint32_t n_rows;
  uint32_t n_cols;
  std::vector<float> values;
};

// Inputs are rows: q = x * wq, x += heads * wo.
struct LayerWeights {
  Matrix wq{kModelDim, kQHeads* kHeadDim};
  Matrix wk{kModelDim, kKvHeads* kHeadDim};
  Matrix wv{kModelDim, kKvHeads* kHeadDim};
  Matrix wo{kQHeads * kHeadDim, kModelDim};
};

struct Weights {
  Matrix embeddings{kVocabulary, kModelDim};
  std::vector<LayerWeights> layers;
  Matrix unembedding{kCodeBits, kVocabulary};  // logits from the OUT dims
};

// The logit of UNK; any found value is higher.
inline constexpr float kUnknownLogit = 6.0f;

Weights MakeWeights();

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_WEIGHTS_H_
