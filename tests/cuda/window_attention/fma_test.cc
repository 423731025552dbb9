// The plain form of window_attention.cu against double precision.
#include <vector>

#include "tests/cuda/window_attention/checks.h"

#define KV_USE_MMA 0
#define KV_FEW 0
#define KV_ATTENTION_LIST "tests/cuda/window_attention/fma_variants.inc"
#include "tests/cuda/window_attention/variants-inl.h"

int main() {
  using namespace kvevict::cuda;
  CheckVariants("window_attention_fma", kVariants, {"odd", "packed"}, {"odd"});
}
