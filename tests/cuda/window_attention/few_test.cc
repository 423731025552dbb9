// window_attention_few.cu against double precision.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/cuda/window_attention/checks.h"

#define KV_USE_MMA 0
#define KV_FEW 1
#define KV_ATTENTION_LIST "tests/cuda/window_attention/few_variants.inc"
#include "tests/cuda/window_attention/variants-inl.h"

int main() {
  using namespace kvevict::cuda;
  kvevict::Random random(kvevict::TestSeed("window_attention_few"));
  size_t n = 0;
  for (const AttentionVariant& v : kVariants) {
    const auto policy =
        kvevict::simt::kPolicies[n++ % std::size(kvevict::simt::kPolicies)];
    MatchesTheOracle(v, policy, random);
    TakesAnyLayout(v, random);
    KeepsToTheErrorBound(v, random);
  }
  for (const char* name : {"f16_g1", "d72_w3"}) {
    IsTheSameInAnyOrderOfThreads(FindVariant(name), random);
  }
  for (const char* name : {"d72_w3", "f32_bf16"}) {
    KeepsToTheFormula(FindVariant(name));
  }
}
