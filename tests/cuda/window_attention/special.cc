#include <cmath>
#include <limits>

#include "tests/cuda/window_attention/checks.h"

namespace kvevict::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kTokens = 2 * 64 + 20;

class Case {
 public:
  explicit Case(const AttentionVariant& variant)
      : variant_(variant), random_(7) {
    layer_ = RandomLayer(variant, 1, kTokens, random_);
    for (float& q : input().queries) {
      if (q == 0.0f) q = 0.5f;  // infinity times it would be NaN
    }
  }

  oracle::WindowAttentionInput& input() { return layer_[0]; }
  float* Key(uint32_t token) {
    return &input().keys[size_t{token} * variant_.head_dim];
  }
  float* Query(uint32_t head, uint32_t w) {
    return &input().queries[(head * variant_.window + w) * variant_.head_dim];
  }
  void MakeQueriesPositive() {
    for (float& q : input().queries) q = std::abs(q);
  }
  // The first element of some keys.
  void SetKeys(uint32_t first_token, uint32_t last_token, float v) {
    for (uint32_t t = first_token; t < last_token; ++t) Key(t)[0] = v;
  }

  // Log-sum-exps are computed, or given. Splits have one tile, and the last one
  // begins where some rows see nothing.
  void ExpectOracle(const char* what) {
    AttentionLayout layout;
    layout.tiles_per_split = 1;
    layout.odd_layers_have_lse = true;
    for (const std::vector<float>& scores :
         RunAttention(variant_, {layer_, layer_}, layout, {})) {
      Expect(what, CompareWithOracle(variant_, layer_, scores).error);
    }
  }

 private:
  const AttentionVariant& variant_;
  Random random_;
  AttentionLayer layer_;
};

void NanSpoilsWhatItsRowSees(const AttentionVariant& v) {
  for (uint32_t w : {0u, v.window - 1}) {
    Case c(v);
    c.Query(v.group - 1, w)[3 % v.head_dim] = kNan;
    c.ExpectOracle("NaN in a query");
  }
  // All rows see it, or the last one alone.
  for (uint32_t token : {70u, kTokens - 1}) {
    Case c(v);
    c.Key(token)[v.head_dim - 1] = kNan;
    c.ExpectOracle("NaN in a key");
  }
}

void InfinityIsNanOrZero(const AttentionVariant& v) {
  {
    // Rows with a positive first element see +infinity, others -infinity.
    Case c(v);
    c.Key(70)[0] = kInfinity;
    c.ExpectOracle("an infinite key");
  }
  Case c(v);
  c.MakeQueriesPositive();
  c.SetKeys(0, 70, -kInfinity);
  c.ExpectOracle("a split of -infinity");
  c.SetKeys(0, kTokens - 3, -kInfinity);
  c.ExpectOracle("rows that see nothing but -infinity");
}

// Keys that only the last rows see never matter to the others.
void UnseenKeysDoNotMatter(const AttentionVariant& v) {
  for (float value : {kInfinity, kNan, 8192.0f}) {
    Case c(v);
    c.SetKeys(kTokens - v.window / 2, kTokens, value);
    c.ExpectOracle("unseen keys");
  }
}

// Powers of two make products and sums exact, so that tolerances, which grow
// with the logits, stay meaningful.
void SurvivesLargeLogits(const AttentionVariant& v) {
  for (float scale : {4096.0f, -64.0f, 0.0f}) {
    Case c(v);
    for (float& q : c.input().queries) q = std::exp2(std::round(q)) / 64.0f;
    for (float& k : c.input().keys) k = std::round(k);
    c.input().scale = scale;
    c.ExpectOracle("large logits");
  }
}

// The reference of a sum is raised again and again, and earlier sums still count.
void FollowsARisingMaximum(const AttentionVariant& v) {
  for (float step : {2.0f, 46.0f}) {
    Case c(v);
    for (float& q : c.input().queries) q = 0.0f;
    for (uint32_t r = 0; r < v.group * v.window; ++r) {
      c.input().queries[size_t{r} * v.head_dim] = r % 2 == 0 ? 1.0f : -1.0f;
    }
    c.input().scale = 1.0f;
    for (uint32_t t = 0; t < kTokens; ++t) {
      c.Key(t)[0] = step * static_cast<float>(t / 16);
    }
    c.ExpectOracle("a rising maximum");
  }
}

}  // namespace

void KeepsToTheFormula(const AttentionVariant& v) {
  NanSpoilsWhatItsRowSees(v);
  InfinityIsNanOrZero(v);
  UnseenKeysDoNotMatter(v);
  SurvivesLargeLogits(v);
  FollowsARisingMaximum(v);
}

}  // namespace kvevict::cuda
