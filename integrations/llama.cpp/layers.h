// What the graphs of a context say about its cache, and handles of kvevict.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_LAYERS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_LAYERS_H_

#include <ggml-backend.h>
#include <ggml.h>
#include <kvevict/calibration.h>
#include <kvevict/kvevict.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvevict::llama {

// The layout of K or V in a cache, for one stream, in bytes from cell 0 on.
struct Rows {
  int32_t type = 0;  // ggml_type
  uint32_t head_dim = 0;
  uint64_t row_bytes = 0;  // all heads of a cell
  uint32_t transposed = 0;
  uint32_t reserved = 0;  // no byte of a file is undefined

  kvevict_dtype dtype() const;
  bool operator==(const Rows&) const = default;
};

// The shape of one layer's cache and attention. All of it goes to session
// files.
struct LayerShape {
  int32_t index = 0;  // llama.cpp's
  uint32_t n_q_heads = 0;
  uint32_t n_kv_heads = 0;
  float scale = 0;
  float max_bias = 0;  // ALiBi
  float softcap = 0;   // logits x become softcap * tanh(x / softcap)
  uint32_t has_sinks = 0;
  uint32_t reserved = 0;
  Rows k;
  Rows v;  // head_dim 0: values are part of the keys' rows (MLA)

  bool operator==(const LayerShape&) const = default;
};

// A layer in the last graph.
struct Layer {
  LayerShape shape;
  const ggml_tensor* k = nullptr;  // cache_k_l<index>: [row, cells, streams]
  const ggml_tensor* v = nullptr;  // nullptr for MLA
  const ggml_tensor* cells = nullptr;  // where the batch's tokens go
  size_t cache = 0;  // of the graph's caches; the first one written to is 0
  std::vector<float> sinks;                 // a logit per query head, or empty
  const ggml_tensor* logits = nullptr;      // K q, until its softmax is seen
  const ggml_tensor* projection = nullptr;  // weights of attention's output
};

// The factors with which LongRoPE rotated keys.
enum class RopeFactors : uint32_t { kNone = 0, kShort = 1, kLong = 2 };

// Sink logits of all layers' query heads, layer by layer, or empty if no layer
// has any: kvevict_geometry.sink_logits.
using SinkLogits = std::vector<float>;

// The view of a stream of n_cells cells whose K and V begin at these addresses.
kvevict_view CacheView(const LayerShape& shape, uint64_t k, uint64_t v,
                       uint64_t n_cells);

struct DestroyHandle {
  void operator()(kvevict_policy* p) const { kvevict_policy_destroy(p); }
  void operator()(kvevict_context* p) const { kvevict_context_destroy(p); }
  void operator()(kvevict_plan* p) const { kvevict_plan_destroy(p); }
  void operator()(kvevict_sequence* p) const { kvevict_sequence_destroy(p); }
  void operator()(kvevict_calibration* p) const {
    kvevict_calibration_destroy(p);
  }
};
using PolicyHandle = std::unique_ptr<kvevict_policy, DestroyHandle>;
using ContextHandle = std::unique_ptr<kvevict_context, DestroyHandle>;
using PlanHandle = std::unique_ptr<kvevict_plan, DestroyHandle>;
using CalibrationHandle = std::unique_ptr<kvevict_calibration, DestroyHandle>;
using SequenceHandle = std::unique_ptr<kvevict_sequence, DestroyHandle>;

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_LAYERS_H_
