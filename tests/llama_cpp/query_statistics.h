// The queries of an unmodified llama.cpp before RoPE, and their statistics in double
// precision.
#ifndef KVEVICT_TESTS_LLAMA_CPP_QUERY_STATISTICS_H_
#define KVEVICT_TESTS_LLAMA_CPP_QUERY_STATISTICS_H_

#include <ggml.h>
#include <kvevict/kvevict.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvevict::tests {

// By layer, rows [n_heads * head_dim] in the order in which they were computed.
using Queries = std::map<uint32_t, std::vector<float>>;

// A callback of a context, with Queries as its data. It knows the architectures llama and
// qwen3.
bool CaptureQueries(ggml_tensor* node, bool ask, void* queries);

// The tensors that nodes read, by name; a view counts as what it views. A callback of
// a context, with Tensors as its data.
using Tensors = std::map<std::string, const ggml_tensor*>;
bool CaptureTensors(ggml_tensor* node, bool ask, void* tensors);

struct QueryShape {
  size_t n_heads, head_dim;
  std::vector<double> inv_freq;  // head_dim / 2
  bool halves;                   // pair p is (p, p + pairs), else (2p, 2p + 1)
};

// inv_freq of a base of 10000.
QueryShape MakeQueryShape(size_t n_heads, size_t head_dim, bool halves);

// R m and R C R', with R the mean rotation over 512 positions.
struct Moments {
  std::vector<float> mean, covariance;
};
Moments ExpectedMoments(std::span<const float> rows, const QueryShape& shape,
                        size_t first_position);

// [n_heads, 3, pairs]: the means of the real parts, imaginary parts and lengths.
std::vector<float> Centers(std::span<const float> rows,
                           const QueryShape& shape);

// f32 [n_heads, rows, n], packed.
kvevict_plane Packed(std::span<const float> values, int64_t rows, uint32_t n);

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_LLAMA_CPP_QUERY_STATISTICS_H_
