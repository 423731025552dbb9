#include "tools/recall/weights.h"

#include <cmath>

#include "tools/recall/random.h"

namespace kvevict::tools {
namespace {

// Undoes the 1/sqrt(head_dim) of the attention.
const double kLogitScale = std::sqrt(static_cast<double>(kHeadDim));

constexpr float kJunkGain = 0.2f;
constexpr float kLogitGain = 20.0f;

// ---- Parts of heads ----

// Maps rows `from`, .. of the residual stream to all dims of a head.
void SetRows(Matrix& w, uint32_t from, uint32_t head,
             const std::vector<float>& values, double gain) {
  const uint32_t n_rows = static_cast<uint32_t>(values.size()) / kHeadDim;
  for (uint32_t i = 0; i < n_rows; ++i) {
    for (uint32_t e = 0; e < kHeadDim; ++e) {
      w.at(from + i, head * kHeadDim + e) =
          static_cast<float>(values[i * kHeadDim + e] * gain);
    }
  }
}

// Sets the value to the token's code; that of BOS is zero.
void SetCodeValues(Matrix& wv, uint32_t kv_head) {
  for (uint32_t i = 0; i < kCodeBits; ++i) {
    wv.at(kCodeDims + i, kv_head * kHeadDim + i) = 1;
    wv.at(kBosDim, kv_head * kHeadDim + i) = -CodeValue(kBos, i);
  }
}

// Maps the first dims of a head to a place in the residual stream.
void SetOutput(Matrix& wo, uint32_t q_head, uint32_t to, float gain) {
  for (uint32_t i = 0; i < kCodeBits; ++i) {
    wo.at(q_head * kHeadDim + i, to + i) = gain;
  }
}

// ---- The heads ----

// Pairs of the previous-token head, and its score at the target: at least 25
// nats above any other distance up to 128K.
constexpr uint32_t kDistancePairs = 16;
constexpr double kDistanceScore = 300;

double DistanceAmplitude() {
  return std::sqrt(kDistanceScore / kDistancePairs);
}

// Attends to the token `distance` back: query and key rotate with their
// positions and agree in all of the fastest pairs only at that distance.
// Content plays no role.
void SetPreviousTokenQuery(Matrix& wq, uint32_t q_head, double distance) {
  const double a = DistanceAmplitude();
  for (uint32_t f = 0; f < kDistancePairs; ++f) {
    const double angle = -distance * RopeFrequency(f);
    const uint32_t dim = q_head * kHeadDim + f;
    wq.at(kConstDim, dim) =
        static_cast<float>(a * std::cos(angle) * kLogitScale);
    wq.at(kConstDim, dim + kRopePairs) =
        static_cast<float>(a * std::sin(angle) * kLogitScale);
  }
}

void SetPreviousTokenHead(LayerWeights& layer) {
  for (uint32_t f = 0; f < kDistancePairs; ++f) {
    layer.wk.at(kConstDim, f) = static_cast<float>(DistanceAmplitude());
  }
  SetPreviousTokenQuery(layer.wq, 0, 1);
  SetPreviousTokenQuery(layer.wq, 1, 2);
  SetCodeValues(layer.wv, 0);
  SetOutput(layer.wo, 0, kPreviousDims, 1);
  SetOutput(layer.wo, 1, kJunkOutDims, kJunkGain);
}

// Attends to the token whose predecessor is the current one, in the slowest
// pairs, which rotate little over the whole prompt. If there is none, BOS takes
// the weight and contributes nothing. Separators are never a target.
void SetInductionHead(LayerWeights& layer) {
  const double b = 8;  // a match scores b^2
  for (uint32_t i = 0; i < kCodeBits; ++i) {
    const uint32_t dim = 47 + i / 2 + (i % 2) * kRopePairs;
    layer.wk.at(kPreviousDims + i, dim) = static_cast<float>(b);
    layer.wq.at(kCodeDims + i, dim) = static_cast<float>(b * kLogitScale);
  }
  constexpr uint32_t kSinkDim = 63;
  layer.wk.at(kBosDim, kSinkDim) = static_cast<float>(0.72 * b);
  layer.wk.at(kSeparatorDim, kSinkDim) = static_cast<float>(-1.5 * b);
  layer.wq.at(kConstDim, kSinkDim) = static_cast<float>(b * kLogitScale);
  SetCodeValues(layer.wv, 0);
  SetOutput(layer.wo, 0, kOutDims, 1);

  // Its neighbour in the query group is noise.
  const double deviation = 0.6 / std::sqrt(32.0);
  SetRows(layer.wq, kJunkInDims, 1,
          Gauss(21, size_t{kCodeBits} * kHeadDim, deviation), kLogitScale / b);
  SetOutput(layer.wo, 1, kJunkOutDims, kJunkGain);
}

// KV head 1 and its two query heads spread their attention and carry no answer.
void SetDiffuseHeads(LayerWeights& layer, uint32_t index) {
  constexpr uint32_t kKvHead = 1;
  const size_t n = size_t{kCodeBits} * kHeadDim;
  const double deviation = 1 / std::sqrt(32.0);
  SetRows(layer.wk, kJunkInDims, kKvHead, Gauss(31 + index, n, deviation), 1);
  for (uint32_t f = 20; f < 36; ++f) {
    layer.wk.at(kConstDim, kKvHead * kHeadDim + f) += 1;
  }
  for (uint32_t h = 2; h < kQHeads; ++h) {
    SetRows(layer.wq, kJunkInDims, h, Gauss(41 + 10 * index + h, n, deviation),
            1);
    for (uint32_t f = 20; f < 36; ++f) {
      layer.wq.at(kConstDim, h * kHeadDim + f) += 3;
    }
    SetOutput(layer.wo, h, kJunkOutDims, kJunkGain);
  }
  for (uint32_t i = 0; i < kCodeBits; ++i) {
    layer.wv.at(kJunkInDims + i, kKvHead * kHeadDim + i) = 1;
  }
}

void SetEmbeddings(Matrix& embeddings) {
  const std::vector<float> junk = Gauss(11, size_t{kVocabulary} * kCodeBits, 1);
  for (uint32_t t = 0; t < kVocabulary; ++t) {
    embeddings.at(t, kConstDim) = 1;
    for (uint32_t i = 0; i < kCodeBits; ++i) {
      embeddings.at(t, kCodeDims + i) = CodeValue(static_cast<int32_t>(t), i);
      embeddings.at(t, kJunkInDims + i) = junk[t * kCodeBits + i];
    }
  }
  embeddings.at(kBos, kBosDim) = 1;
  embeddings.at(kSeparator, kSeparatorDim) = 1;
}

}  // namespace

double RopeFrequency(uint32_t f) {
  return std::pow(kRopeBase, -static_cast<double>(f) / kRopePairs);
}

Weights MakeWeights() {
  Weights weights;
  SetEmbeddings(weights.embeddings);
  weights.layers.resize(kLayers);
  SetPreviousTokenHead(weights.layers[0]);
  SetInductionHead(weights.layers[1]);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    SetDiffuseHeads(weights.layers[layer], layer);
  }
  for (uint32_t i = 0; i < kCodeBits; ++i) {
    for (uint32_t t = 0; t < kVocabulary; ++t) {
      weights.unembedding.at(i, t) =
          kLogitGain * CodeValue(static_cast<int32_t>(t), i);
    }
  }
  return weights;
}

}  // namespace kvevict::tools
