// The tensor core form of window_attention.cu against double precision.
#include <vector>

#include "tests/cuda/window_attention/checks.h"

#define KV_USE_MMA 1
#define KV_FEW 0
#define KV_ATTENTION_LIST "tests/cuda/window_attention/mma_variants.inc"
#include "tests/cuda/window_attention/variants-inl.h"

int main() {
  using namespace kvevict::cuda;
  CheckVariants("window_attention_mma", kVariants, {"w33_g3"},
                {"w33_g3", "w20_g8", "f32_w64", "f32_f16"});
}
