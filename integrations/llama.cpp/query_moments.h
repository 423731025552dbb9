// Mean and covariance of a sequence's queries before RoPE.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_QUERY_MOMENTS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_QUERY_MOMENTS_H_

#include <ggml.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::llama {

// How a layer's queries were rotated: pair p of a head's elements by position *
// inv_freq[p]. Elements beyond the pairs are left alone.
struct Rotation {
  std::vector<double> inv_freq;
  bool halves = false;  // pair p is (p, p + pairs), else (2p, 2p + 1)
  std::string unknown;  // why it is not known; "" if it is

  size_t First(size_t p) const { return halves ? p : 2 * p; }
  size_t Second(size_t p) const {
    return halves ? p + inv_freq.size() : 2 * p + 1;
  }
};

// Finds the rotation from the node that computed the queries that attention
// reads.
Rotation FindRotation(const ggml_tensor* q);

// Sums and products of the queries of one layer, rotated back to position 0.
class QueryMoments {
 public:
  // Adds a row [n_heads, head_dim] of queries as attention reads them.
  void Add(const Rotation& rotation, const float* row, uint32_t n_heads,
           uint32_t head_dim, uint32_t position);
  void Clear() { n_rows_ = 0; }
  uint32_t n_rows() const { return n_rows_; }

  // Mean [n_heads, head_dim] and covariance [n_heads, head_dim, head_dim] of
  // future queries: R m and R C R', with R the mean rotation of the positions
  // from `next` on.
  void Expect(const Rotation& rotation, uint32_t next, std::vector<float>& mean,
              std::vector<float>& covariance) const;

 private:
  uint32_t n_rows_ = 0;
  size_t head_dim_ = 0;
  std::vector<double> sums_;     // [n_heads, head_dim]
  std::vector<float> products_;  // [n_heads, head_dim, head_dim]
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_QUERY_MOMENTS_H_
