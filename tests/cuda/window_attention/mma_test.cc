// The tensor core form of window_attention.cu against double precision.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/cuda/window_attention/checks.h"

#define KV_USE_MMA 1
#define KV_FEW 0
#define KV_ATTENTION_LIST "tests/cuda/window_attention/mma_variants.inc"
#include "tests/cuda/window_attention/variants-inl.h"

int main() {
  using namespace kvevict::cuda;
  kvevict::Random random(kvevict::TestSeed("window_attention_mma"));
  size_t n = 0;
  for (const AttentionVariant& v : kVariants) {
    const auto policy =
        kvevict::simt::kPolicies[n++ % std::size(kvevict::simt::kPolicies)];
    MatchesTheOracle(v, policy, random);
    TakesAnyLayout(v, random);
    KeepsToTheErrorBound(v, random);
  }
  IsTheSameInAnyOrderOfThreads(FindVariant("w33_g3"), random);
  for (const char* name : {"w33_g3", "w20_g8", "f32_w64", "f32_f16"})
    KeepsToTheFormula(FindVariant(name));
}
