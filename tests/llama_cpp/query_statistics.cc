#include "tests/llama_cpp/query_statistics.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvevict::tests {
namespace {

std::pair<size_t, size_t> PairOf(const QueryShape& shape, size_t p) {
  const size_t n_pairs = shape.head_dim / 2;
  return shape.halves ? std::pair(p, p + n_pairs) : std::pair(2 * p, 2 * p + 1);
}

}  // namespace

bool CaptureQueries(ggml_tensor* node, bool ask, void* queries) {
  const bool normed = std::strncmp(node->name, "Qcur_normed-", 12) == 0;
  const bool plain = std::strncmp(node->name, "Qcur-", 5) == 0;
  if ((!normed && !plain) ||
      (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL)) {
    return false;
  }
  if (ask) return true;
  auto& rows = (*static_cast<Queries*>(queries))[static_cast<uint32_t>(
      std::atoi(std::strrchr(node->name, '-') + 1))];
  const auto* data = static_cast<const float*>(node->data);
  const auto n = static_cast<size_t>(ggml_nelements(node));
  // The row captured before its norm is replaced.
  if (normed) rows.resize(rows.size() - n);
  rows.insert(rows.end(), data, data + n);
  return true;
}

bool CaptureTensors(ggml_tensor* node, bool, void* tensors) {
  for (const ggml_tensor* t : node->src) {
    if (t == nullptr) continue;
    while (t->view_src != nullptr) t = t->view_src;
    (*static_cast<Tensors*>(tensors))[t->name] = t;
  }
  return false;
}

QueryShape MakeQueryShape(size_t n_heads, size_t head_dim, bool halves) {
  QueryShape shape{n_heads, head_dim, {}, halves};
  for (size_t p = 0; p < head_dim / 2; ++p) {
    shape.inv_freq.push_back(std::pow(
        10000.0,
        -2.0 * static_cast<double>(p) / static_cast<double>(head_dim)));
  }
  return shape;
}

Moments ExpectedMoments(std::span<const float> rows, const QueryShape& shape,
                        size_t first_position) {
  const size_t dim = shape.head_dim, n_pairs = dim / 2;
  const size_t width = shape.n_heads * dim, n_rows = rows.size() / width;
  std::vector<double> r(dim * dim);  // [to, from]
  for (size_t p = 0; p < n_pairs; ++p) {
    double cosine = 0, sine = 0;
    for (size_t i = 0; i < 512; ++i) {
      cosine += std::cos(static_cast<double>(first_position + i) *
                         shape.inv_freq[p]) /
                512;
      sine += std::sin(static_cast<double>(first_position + i) *
                       shape.inv_freq[p]) /
              512;
    }
    const auto [x, y] = PairOf(shape, p);
    r[x * dim + x] = r[y * dim + y] = cosine;
    r[x * dim + y] = -sine;
    r[y * dim + x] = sine;
  }
  Moments found;
  for (size_t h = 0; h < shape.n_heads; ++h) {
    std::vector<double> m(dim), c(dim * dim);
    const auto n = static_cast<double>(n_rows);
    const auto at = [&](size_t t, size_t i) {
      return double{rows[t * width + h * dim + i]};
    };
    for (size_t t = 0; t < n_rows; ++t) {
      for (size_t i = 0; i < dim; ++i) m[i] += at(t, i) / n;
    }
    for (size_t t = 0; t < n_rows; ++t) {
      for (size_t i = 0; i < dim; ++i) {
        for (size_t j = 0; j < dim; ++j) {
          c[i * dim + j] += (at(t, i) - m[i]) * (at(t, j) - m[j]) / n;
        }
      }
    }
    for (size_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (size_t j = 0; j < dim; ++j) sum += r[i * dim + j] * m[j];
      found.mean.push_back(static_cast<float>(sum));
    }
    std::vector<double> rc(dim * dim);
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        for (size_t k = 0; k < dim; ++k) {
          rc[i * dim + j] += r[i * dim + k] * c[k * dim + j];
        }
      }
    }
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        double sum = 0;
        for (size_t k = 0; k < dim; ++k)
          sum += rc[i * dim + k] * r[j * dim + k];
        found.covariance.push_back(static_cast<float>(sum));
      }
    }
  }
  return found;
}

std::vector<float> Centers(std::span<const float> rows,
                           const QueryShape& shape) {
  const size_t dim = shape.head_dim, n_pairs = dim / 2;
  const size_t width = shape.n_heads * dim, n_rows = rows.size() / width;
  std::vector<double> sums(shape.n_heads * 3 * n_pairs);
  for (size_t t = 0; t < n_rows; ++t) {
    for (size_t h = 0; h < shape.n_heads; ++h) {
      const float* q = &rows[t * width + h * dim];
      for (size_t p = 0; p < n_pairs; ++p) {
        const auto [x, y] = PairOf(shape, p);
        double* of_pair = &sums[h * 3 * n_pairs + p];
        of_pair[0] += q[x];
        of_pair[n_pairs] += q[y];
        of_pair[2 * n_pairs] += std::hypot(double{q[x]}, double{q[y]});
      }
    }
  }
  std::vector<float> centers;
  for (const double sum : sums) {
    centers.push_back(static_cast<float>(sum / static_cast<double>(n_rows)));
  }
  return centers;
}

kvevict_plane Packed(std::span<const float> values, int64_t rows, uint32_t n) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uint64_t>(values.data());
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = n;
  plane.token_stride_bytes = 4 * int64_t{n};
  plane.head_stride_bytes = rows * plane.token_stride_bytes;
  return plane;
}

}  // namespace kvevict::tests
