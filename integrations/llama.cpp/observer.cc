#include "observer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvevict::llama {
namespace {

// The tensor that a node reads, before it is cast, transposed or made
// contiguous.
const ggml_tensor* Uncopied(const ggml_tensor* t) {
  for (;;) {
    const bool copy =
        t->op == GGML_OP_CPY || t->op == GGML_OP_CONT || t->op == GGML_OP_DUP;
    if (!copy || t->src[0] == nullptr) return t;
    t = t->src[0];
  }
}

// The layer's number if the tensor is `prefix`<number>, else -1.
int32_t LayerOf(const ggml_tensor* t, const char* prefix) {
  const size_t n = std::strlen(prefix);
  if (std::strncmp(t->name, prefix, n) != 0) return -1;
  char* end = nullptr;
  const long index = std::strtol(t->name + n, &end, 10);
  return end != t->name + n && *end == '\0' ? static_cast<int32_t>(index) : -1;
}

int32_t KeyLayer(const ggml_tensor* root) { return LayerOf(root, "cache_k_l"); }
int32_t ValueLayer(const ggml_tensor* root) {
  return LayerOf(root, "cache_v_l");
}

// Whether a tensor is keys of the cache, unchanged or with the rotation of a
// quantized cache reverted.
bool IsCachedKeys(const ggml_tensor* t) {
  const ggml_tensor* root = Root(t);
  if (root->op == GGML_OP_MUL_MAT) root = Root(root->src[1]);
  return KeyLayer(root) >= 0;
}

float FloatParam(const ggml_tensor* node, int i) {
  float value;
  std::memcpy(&value, &node->op_params[i], sizeof value);
  return value;
}

Rows KeyRows(const ggml_tensor* view, const ggml_tensor* root) {
  Rows rows;
  rows.type = root->type;
  rows.head_dim = static_cast<uint32_t>(view->ne[0]);
  rows.row_bytes = root->nb[1];
  return rows;
}

// `tokens` is the dimension of `view` that counts cells: 1 in flash attention,
// 0 where values are multiplied by weights.
Rows ValueRows(const ggml_tensor* view, const ggml_tensor* root, int tokens) {
  Rows rows;
  rows.type = root->type;
  rows.head_dim = static_cast<uint32_t>(view->ne[1 - tokens]);
  rows.row_bytes = root->nb[1];
  rows.transposed = view->nb[tokens] < view->nb[1 - tokens];
  return rows;
}

void FindFactors(const ggml_tensor* factors, RopeFactors& found) {
  if (factors == nullptr) return;
  const char* name = Root(factors)->name;
  if (std::strstr(name, "rope_factors_long") != nullptr) {
    found = RopeFactors::kLong;
  } else if (std::strstr(name, "rope_factors_short") != nullptr) {
    found = RopeFactors::kShort;
  }
}

void ReadSinks(const ggml_tensor* sinks, Layer& layer) {
  layer.shape.has_sinks = sinks != nullptr ? 1 : 0;
  // They are weights of the model and do not change.
  if (sinks == nullptr || !layer.sinks.empty()) return;
  layer.sinks.resize(static_cast<size_t>(sinks->ne[0]));
  ReadTensor(sinks, layer.sinks.data(), 0, layer.sinks.size() * sizeof(float));
}

}  // namespace

const ggml_tensor* Root(const ggml_tensor* t) {
  for (t = Uncopied(t); t->view_src != nullptr; t = Uncopied(t->view_src)) {
  }
  return t;
}

void ReadTensor(const ggml_tensor* tensor, void* out, size_t offset, size_t n) {
  const ggml_backend_buffer_t buffer =
      tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  if (buffer == nullptr || ggml_backend_buffer_is_host(buffer)) {
    std::memcpy(out, static_cast<const char*>(tensor->data) + offset, n);
  } else {
    ggml_backend_tensor_get(tensor, out, offset, n);
  }
}

void Observer::Reset() { *this = Observer(listener_); }

size_t Observer::Find(int32_t index) {
  const auto at = std::lower_bound(
      layers_.begin(), layers_.end(), index,
      [](const Layer& l, int32_t i) { return l.shape.index < i; });
  const size_t i = at - layers_.begin();
  if (at == layers_.end() || at->shape.index != index) {
    Layer layer;
    layer.shape.index = index;
    layers_.insert(at, layer);
    seen_.insert(seen_.begin() + static_cast<ptrdiff_t>(i), Seen{});
  }
  return i;
}

bool Observer::Ask(const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_ROPE:
      if (IsCachedKeys(node->src[0])) {
        listener_->OnShift();
      } else {
        positions_ = node->src[1];
        FindFactors(node->src[2], rope_factors_);
      }
      return false;
    case GGML_OP_SET_ROWS:
      OnStored(node);
      return false;
    case GGML_OP_FLASH_ATTN_EXT: {
      if (!OnAttention(node, node->src[0], node->src[1])) return false;
      Layer& layer = layers_[attending_];
      attended_ = node;
      attended_layer_ = layer.shape.index;
      const ggml_tensor* root = Root(node->src[2]);
      if (ValueLayer(root) == layer.shape.index) {
        layer.v = root;
        layer.shape.v = ValueRows(Uncopied(node->src[2]), root, 1);
      }
      layer.shape.scale = FloatParam(node, 0);
      layer.shape.max_bias = FloatParam(node, 1);
      layer.shape.softcap = FloatParam(node, 2);
      ReadSinks(node->src[4], layer);
      return listener_->WantsQueries(attending_, node->src[0]);
    }
    case GGML_OP_MUL_MAT: {
      const ggml_tensor* root = Root(node->src[0]);
      if (const int32_t index = ValueLayer(root); index >= 0) {
        Layer& layer = layers_[Find(index)];
        layer.v = root;
        layer.shape.v = ValueRows(Uncopied(node->src[0]), root, 0);
        attended_ = node;
        attended_layer_ = index;
        return false;
      }
      OnProjection(node);
      if (!OnAttention(node, node->src[1], node->src[0])) return false;
      layers_[attending_].logits = node;
      return listener_->WantsQueries(attending_, node->src[1]);
    }
    case GGML_OP_SOFT_MAX:
      OnSoftMax(node);
      return false;
    default:
      return false;
  }
}

void Observer::Computed(const ggml_tensor* node) {
  listener_->OnQueries(attending_,
                       node->src[node->op == GGML_OP_FLASH_ATTN_EXT ? 0 : 1]);
}

// The index in caches_ of the cache whose tokens go to these cells.
size_t Observer::FindCache(const ggml_tensor* cells) {
  for (size_t i = 0; i < n_caches_; ++i) {
    if (caches_[i].source == cells) return i;
  }
  if (n_caches_ == caches_.size()) caches_.emplace_back();
  Cache& cache = caches_[n_caches_];
  const auto n = static_cast<size_t>(cells->ne[0]);
  cache.source = cells;
  cache.cells.resize(n);
  if (cells->type == GGML_TYPE_I64) {
    ReadTensor(cells, cache.cells.data(), 0, n * sizeof(int64_t));
  } else {
    bytes_.resize(n * sizeof(int32_t));
    ReadTensor(cells, bytes_.data(), 0, bytes_.size());
    for (size_t r = 0; r < n; ++r) {
      int32_t cell;
      std::memcpy(&cell, bytes_.data() + r * sizeof cell, sizeof cell);
      cache.cells[r] = cell;
    }
  }
  return n_caches_++;
}

// The first node of a graph that writes to the cache shows where the graph's
// tokens go.
void Observer::OnStored(const ggml_tensor* node) {
  const ggml_tensor* root = Root(node);
  const int32_t index = KeyLayer(root);
  if (index < 0) return;
  const size_t i = Find(index);
  const ggml_tensor* cells = node->src[1];
  layers_[i].k = root;
  layers_[i].cells = cells;
  if (n_graphs_ != 0 && seen_[i].stored != n_graphs_) {
    seen_[i].stored = n_graphs_;
    layers_[i].cache = FindCache(cells);
    return;
  }
  seen_[i].stored = ++n_graphs_;
  n_caches_ = 0;
  layers_[i].cache = FindCache(cells);

  const auto n = static_cast<size_t>(cells->ne[0]);
  rows_.resize(n);
  for (size_t r = 0; r < n; ++r) rows_[r] = {caches_[0].cells[r], -1};
  // Multimodal positions have several planes; the first counts tokens.
  if (positions_ != nullptr && positions_->type == GGML_TYPE_I32 &&
      positions_->ne[0] % static_cast<int64_t>(n) == 0) {
    bytes_.resize(n * 4);
    ReadTensor(positions_, bytes_.data(), 0, n * 4);
    for (size_t r = 0; r < n; ++r) {
      int32_t position;
      std::memcpy(&position, bytes_.data() + r * 4, 4);
      rows_[r].position = position;
    }
  }
  listener_->OnBatch(rows_, root);
}

// If several layers read one cache, the first one counts, which owns it.
bool Observer::OnAttention(const ggml_tensor*, const ggml_tensor* q,
                           const ggml_tensor* k) {
  const ggml_tensor* root = Root(k);
  const int32_t index = KeyLayer(root);
  if (index < 0) return false;
  const size_t i = Find(index);
  if (seen_[i].attended == n_graphs_) return false;
  seen_[i].attended = n_graphs_;
  const ggml_tensor* view = Uncopied(k);
  Layer& layer = layers_[i];
  layer.k = root;
  layer.shape.k = KeyRows(view, root);
  layer.shape.n_q_heads = static_cast<uint32_t>(q->ne[2]);
  layer.shape.n_kv_heads = static_cast<uint32_t>(view->ne[2]);
  attending_ = i;
  return true;
}

// The first matrix that attention's output is multiplied by is the layer's
// output projection, if it is a weight of the model and takes the values of all
// heads.
void Observer::OnProjection(const ggml_tensor* node) {
  if (attended_ == nullptr || Root(node->src[1]) != attended_) return;
  attended_ = nullptr;
  Layer& layer = layers_[Find(attended_layer_)];
  const ggml_tensor* weights = node->src[0];
  const bool is_weight = weights->buffer != nullptr &&
                         ggml_backend_buffer_get_usage(weights->buffer) ==
                             GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
  if (layer.projection == nullptr && is_weight && layer.shape.n_q_heads > 0 &&
      weights->ne[0] ==
          int64_t{layer.shape.n_q_heads} * layer.shape.v.head_dim) {
    layer.projection = weights;
  }
}

// Logits may pass through scales and a tanh between product and softmax.
void Observer::OnSoftMax(const ggml_tensor* node) {
  float before = 1, after = FloatParam(node, 0);  // scales around the tanh
  bool capped = false;
  const ggml_tensor* t = node->src[0];
  for (int steps = 0; t != nullptr && t->op != GGML_OP_MUL_MAT && steps < 8;
       ++steps, t = t->src[0]) {
    if (t->op == GGML_OP_SCALE) (capped ? before : after) *= FloatParam(t, 0);
    if (t->op == GGML_OP_UNARY && ggml_get_unary_op(t) == GGML_UNARY_OP_TANH) {
      capped = true;
    }
  }
  for (Layer& layer : layers_) {
    if (layer.logits == nullptr || layer.logits != t) continue;
    layer.shape.scale = capped ? before * after : after;
    layer.shape.softcap = capped ? after : 0;
    layer.shape.max_bias = FloatParam(node, 1);
    ReadSinks(node->src[2], layer);
    layer.logits = nullptr;
  }
}

}  // namespace kvevict::llama
