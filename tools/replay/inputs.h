// What policies read besides K, V and Q, from tensors named as the fields of
// kvevict_signal_inputs.
#ifndef KVEVICT_TOOLS_REPLAY_INPUTS_H_
#define KVEVICT_TOOLS_REPLAY_INPUTS_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/policy.h"
#include "tools/replay/dump.h"
#include "tools/replay/tensor_files.h"

namespace kvevict::tools {

class DumpInputs {
 public:
  // Those that the policies read, of the first n_tokens tokens of every layer.
  // Throws std::runtime_error that names a tensor with another type or shape.
  DumpInputs(const TensorFiles& files, const Dump& dump, uint32_t n_tokens,
             std::span<const Policy> policies);

  // [n_layers], without queries.
  const std::vector<kvevict_signal_inputs>& layers() const { return layers_; }
  bool has_attention_sums() const { return has_attention_sums_; }

  // Query heads of a layer, by its queries or by other tensors; those of K
  // where nothing tells.
  uint32_t n_q_heads(uint32_t layer) const { return n_q_heads_[layer]; }
  // Tensor rope_inv_freq [pairs]; empty without it.
  const std::vector<float>& rope_inv_freq() const { return rope_inv_freq_; }

 private:
  void Add(const TensorFiles& files, const Dump& dump, uint32_t n_tokens,
           size_t input);

  // Takes a tensor's number of query heads if none was known.
  void LearnQueryHeads(size_t layer, uint64_t n_heads, uint32_t n_kv_heads);

  std::vector<kvevict_signal_inputs> layers_;
  std::vector<uint32_t> n_q_heads_;
  std::vector<float> rope_inv_freq_;
  std::deque<std::vector<float>> values_;  // aligned, as the library wants them
  std::deque<kvevict_plane> planes_;
  bool has_attention_sums_ = false;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_INPUTS_H_
