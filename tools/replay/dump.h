// Keys, values and queries of a model's layers, as an engine dumped them.
#ifndef KVEVICT_TOOLS_REPLAY_DUMP_H_
#define KVEVICT_TOOLS_REPLAY_DUMP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/replay/tensor_files.h"

namespace kvevict::tools {

struct DumpOptions {
  // Names of tensors. "{}" stands for the number of a layer. Without a name
  // they are k, v and q, of which v and q may be absent.
  std::string k, v, q;
  bool tokens_first = false;  // [tokens, heads, dim], not [heads, tokens, dim]
};

// Rows of one layer in a mapped file.
struct DumpRows {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  uint32_t n_heads = 0;
  uint32_t n_tokens = 0;  // those of Q are the last ones
};

// V and Q may be absent: no heads and no tokens. Without V the values are the
// keys' rows.
struct DumpLayer {
  DumpRows k, v, q;
  uint32_t v_dim() const {
    return v.n_heads > 0 ? v.plane.head_dim : k.plane.head_dim;
  }
};

struct Dump {
  std::vector<DumpLayer> layers;
  uint32_t n_tokens = 0;   // rows of K and V, the same in every layer
  uint32_t n_queries = 0;  // rows of Q, the same in every layer; 0 without Q
};

// Throws std::runtime_error that names the tensor, its shape and what is wrong.
Dump ReadDump(const TensorFiles& files, const DumpOptions& options);

// The parts of a tensor that belong to single layers. It has `n_axes` axes in a
// layer. All layers together are one tensor `name` with an axis of layers
// before, or tensors `name` with "{}" replaced, or else `name`.0, `name`.1 and
// so on. Empty if there is none.
std::vector<Tensor> TensorsOfLayers(const TensorFiles& files,
                                    const std::string& name, size_t n_axes);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_DUMP_H_
