// Dense f32 matrix product for projections.
#ifndef KVEVICT_TOOLS_ENGINE_MATMUL_H_
#define KVEVICT_TOOLS_ENGINE_MATMUL_H_

#include <cstddef>
#include <cstdint>

#include "tools/engine/thread_pool.h"

namespace kvevict::tools {

// c[i, j] = sum over k of a[i, k] * b[k, j], or += if `accumulate`. a is
// [n_rows, n_inner], b [n_inner, n_cols], c [n_rows, n_cols]; rows are *_stride
// floats apart. k ascends, with one accumulator per element, so a row of c
// depends only on its row of a.
struct MatMulArgs {
  uint32_t n_rows = 0;
  uint32_t n_inner = 0;
  uint32_t n_cols = 0;
  const float* a = nullptr;
  size_t a_stride = 0;
  const float* b = nullptr;
  size_t b_stride = 0;
  float* c = nullptr;
  size_t c_stride = 0;
  bool accumulate = false;
};

void MatMul(const MatMulArgs& args, ThreadPool& pool);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_MATMUL_H_
