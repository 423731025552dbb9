// Reads from the nodes of llama.cpp's graphs where the cache is, which cells a
// batch goes to, and the queries.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_OBSERVER_H_
#define KVEVICT_INTEGRATIONS_LLAMA_OBSERVER_H_

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

#include "layers.h"

namespace kvevict::llama {

// A token of the batch that a graph computes.
struct BatchRow {
  int64_t cell = 0;       // over all streams
  int64_t position = -1;  // -1: the graph does not say
};

// The listener. Its functions must not throw.
class GraphListener {
 public:
  // A graph begins to compute these tokens. `cache` is a K tensor that they go
  // to.
  virtual void OnBatch(std::span<const BatchRow> rows,
                       const ggml_tensor* cache) = 0;
  // Whether OnQueries() shall be called for the layer layers()[i], once its
  // queries `q` have been computed.
  virtual bool WantsQueries(size_t i, const ggml_tensor* q) = 0;
  // Queries [head_dim, tokens, heads, streams] of the layer layers()[i] have
  // been computed, and its keys have been stored.
  virtual void OnQueries(size_t i, const ggml_tensor* q) = 0;
  // Keys were rotated to other positions.
  virtual void OnShift() = 0;

 protected:
  ~GraphListener() = default;
};

class Observer {
 public:
  explicit Observer(GraphListener* listener) : listener_(listener) {}

  // Called before a node is computed: whether Computed() shall be called after
  // it.
  bool Ask(const ggml_tensor* node);
  void Computed(const ggml_tensor* node);

  // Forgets everything, as for a new context.
  void Reset();

  // Layers, ascending by index. Grows while the first graph is computed.
  const std::vector<Layer>& layers() const { return layers_; }
  RopeFactors rope_factors() const { return rope_factors_; }
  // The cells, over all streams, to which the graph's tokens go in the cache of
  // layers()[i]. OnBatch() passes those of the first cache.
  std::span<const int64_t> CellsOf(size_t i) const {
    return caches_[layers_[i].cache].cells;
  }

 private:
  struct Seen {
    uint64_t stored = 0, attended = 0;  // number of the last graph that did
  };

  // Layers with a window have a cache, and so cells, of their own.
  struct Cache {
    const ggml_tensor* source = nullptr;
    std::vector<int64_t> cells;
  };

  size_t Find(int32_t index);
  size_t FindCache(const ggml_tensor* cells);
  void OnStored(const ggml_tensor* node);
  bool OnAttention(const ggml_tensor* node, const ggml_tensor* q,
                   const ggml_tensor* k);
  void OnSoftMax(const ggml_tensor* node);
  void OnProjection(const ggml_tensor* node);

  GraphListener* listener_;
  std::vector<Layer> layers_;
  std::vector<Seen> seen_;
  std::vector<Cache> caches_;
  size_t n_caches_ = 0;  // caches of the graph
  std::vector<BatchRow> rows_;
  std::vector<uint8_t> bytes_;
  const ggml_tensor* positions_ = nullptr;
  RopeFactors rope_factors_ = RopeFactors::kNone;
  uint64_t n_graphs_ = 0;
  size_t attending_ = 0;  // the layer whose node has been asked for
  // The last attention and its layer, until its projection is seen.
  const ggml_tensor* attended_ = nullptr;
  int32_t attended_layer_ = 0;
};

// The tensor whose data a node reads, through views and copies.
const ggml_tensor* Root(const ggml_tensor* t);

// Reads the bytes [offset, offset + n) of a tensor in any memory.
void ReadTensor(const ggml_tensor* tensor, void* out, size_t offset, size_t n);

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_OBSERVER_H_
