#include "value_norms.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "error.h"
#include "observer.h"

namespace kvevict::llama {
namespace {

// Tokens that are multiplied at a time, so that products stay in a cache.
constexpr uint32_t kChunk = 128;

void ToFloats(ggml_type type, const void* from, float* to, int64_t n) {
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (traits->to_float != nullptr) {
    traits->to_float(from, to, n);
  } else {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "ggml reads no rows of type ",
         ggml_type_name(type));
  }
}

// Buffers of the CPU that are not host memory store weights in an order of
// their own.
bool IsReadable(const ggml_tensor* t) {
  const ggml_backend_buffer_t buffer =
      t->view_src != nullptr ? t->view_src->buffer : t->buffer;
  if (buffer == nullptr) return false;
  if (ggml_backend_buffer_is_host(buffer)) return true;
  const ggml_backend_dev_t device =
      ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
  return device != nullptr &&
         ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Reads a projection as f32 [outputs, inputs].
std::vector<float> ReadProjection(const ggml_tensor* t, int32_t layer) {
  if (!IsReadable(t)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", layer,
         ": llama.cpp has repacked ", t->name,
         ", whose values weigh tokens; load the model with use_extra_bufts = "
         "false");
  }
  const auto n = static_cast<size_t>(t->ne[0]);
  std::vector<float> floats(n * static_cast<size_t>(t->ne[1]));
  std::vector<uint8_t> row(ggml_row_size(t->type, t->ne[0]));
  for (int64_t r = 0; r < t->ne[1]; ++r) {
    ReadTensor(t, row.data(), static_cast<size_t>(r) * t->nb[1], row.size());
    ToFloats(t->type, row.data(), floats.data() + static_cast<size_t>(r) * n,
             t->ne[0]);
  }
  return floats;
}

// Reads values [n, head_dim] of a head's tokens from `first` on.
void ReadValues(const Rows& rows, const kvevict_plane& plane, uint32_t head,
                uint32_t first, uint32_t n, float* out) {
  const auto type = static_cast<ggml_type>(rows.type);
  const auto* base = reinterpret_cast<const uint8_t*>(plane.data) +
                     head * plane.head_stride_bytes;
  for (uint32_t t = 0; t < n; ++t, out += rows.head_dim) {
    const uint8_t* row = base + (first + t) * plane.token_stride_bytes;
    if (rows.transposed == 0) {
      ToFloats(type, row, out, rows.head_dim);
      continue;
    }
    for (uint32_t i = 0; i < rows.head_dim; ++i) {
      ToFloats(type, row + i * plane.element_stride_bytes, out + i, 1);
    }
  }
}

struct Free {
  void operator()(ggml_context* p) const { ggml_free(p); }
  void operator()(ggml_backend* p) const { ggml_backend_free(p); }
  void operator()(ggml_backend_buffer* p) const { ggml_backend_buffer_free(p); }
};

// Computes sums of |W v| over W's rows, with ggml on the CPU.
class Product {
 public:
  Product(uint32_t head_dim, int64_t n_outputs, int32_t n_threads)
      : backend_(
            ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)),
        context_(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(),
                            nullptr, true})) {
    if (backend_ == nullptr || context_ == nullptr) {
      Fail(KVEVICT_ERROR_UNAVAILABLE, "ggml has no backend for the CPU");
    }
    SetThreads(n_threads);
    ggml_context* c = context_.get();
    weights_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, head_dim, n_outputs);
    values_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, head_dim, kChunk);
    sums_ = ggml_sum_rows(
        c, ggml_abs_inplace(c, ggml_mul_mat(c, weights_, values_)));
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, sums_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(c, backend_.get()));
    if (buffer_ == nullptr) throw std::bad_alloc();
    ggml_backend_buffer_clear(buffer_.get(), 0);
  }

  void SetWeights(const float* rows) {
    ggml_backend_tensor_set(weights_, rows, 0, ggml_nbytes(weights_));
  }
  // n <= kChunk.
  void AddTo(float* sums, const std::vector<float>& values, uint32_t n) {
    ggml_backend_tensor_set(values_, values.data(), 0, ggml_nbytes(values_));
    if (ggml_backend_graph_compute(backend_.get(), graph_) !=
        GGML_STATUS_SUCCESS) {
      Fail(KVEVICT_ERROR_INTERNAL, "ggml_backend_graph_compute() failed");
    }
    float found[kChunk];
    ggml_backend_tensor_get(sums_, found, 0, sizeof found);
    for (uint32_t t = 0; t < n; ++t) sums[t] += found[t];
  }

 private:
  void SetThreads(int32_t n) {
    const ggml_backend_dev_t device = ggml_backend_get_device(backend_.get());
    auto* set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                          "ggml_backend_set_n_threads"));
    if (set != nullptr) set(backend_.get(), n);
  }

  std::unique_ptr<ggml_backend, Free> backend_;
  std::unique_ptr<ggml_context, Free> context_;
  std::unique_ptr<ggml_backend_buffer, Free> buffer_;
  ggml_tensor* weights_ = nullptr;
  ggml_tensor* values_ = nullptr;
  ggml_tensor* sums_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
};

}  // namespace

std::vector<float> ProjectedValueNorms(const LayerShape& shape,
                                       const kvevict_view& view,
                                       uint32_t n_tokens,
                                       const ggml_tensor* projection,
                                       int32_t n_threads) {
  const uint32_t dim = shape.v.head_dim;
  const uint32_t n_q_heads = shape.n_q_heads;
  const uint32_t group = n_q_heads / shape.n_kv_heads;
  if (projection == nullptr) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index,
         ": no output projection follows its attention, by which values could "
         "weigh tokens (MLA, gated attention and rotated quantized values have "
         "none)");
  }
  const std::vector<float> all = ReadProjection(projection, shape.index);
  const auto n_outputs = static_cast<size_t>(projection->ne[1]);
  Product product(dim, projection->ne[1], n_threads);
  std::vector<float> norms(size_t{shape.n_kv_heads} * n_tokens);
  std::vector<float> weights(n_outputs * dim);
  std::vector<float> values(size_t{kChunk} * dim);
  for (uint32_t q = 0; q < n_q_heads; ++q) {
    for (size_t r = 0; r < n_outputs; ++r) {
      std::copy_n(all.data() + (r * n_q_heads + q) * dim, dim,
                  weights.data() + r * dim);
    }
    product.SetWeights(weights.data());
    const uint32_t head = q / group;
    for (uint32_t t = 0; t < n_tokens; t += kChunk) {
      const uint32_t n = std::min(kChunk, n_tokens - t);
      ReadValues(shape.v, view.v, head, t, n, values.data());
      product.AddTo(norms.data() + size_t{head} * n_tokens + t, values, n);
    }
  }
  for (float& norm : norms) norm /= static_cast<float>(group);
  return norms;
}

}  // namespace kvevict::llama
