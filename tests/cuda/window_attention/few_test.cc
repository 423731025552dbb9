// window_attention_few.cu against double precision.
#include <vector>

#include "tests/cuda/window_attention/checks.h"

#define KV_USE_MMA 0
#define KV_FEW 1
#define KV_ATTENTION_LIST "tests/cuda/window_attention/few_variants.inc"
#include "tests/cuda/window_attention/variants-inl.h"

int main() {
  using namespace kvevict::cuda;
  CheckVariants("window_attention_few", kVariants, {"f16_g1", "d72_w3"},
                {"d72_w3", "f32_bf16"});
}
