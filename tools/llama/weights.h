// A LLaMA-architecture model in memory.
#ifndef KVEVICT_TOOLS_LLAMA_WEIGHTS_H_
#define KVEVICT_TOOLS_LLAMA_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvevict::tools {

// A projection y = x W. Files store one row per output. Here there is one row
// per input, as the matrix product needs it.
struct Matrix {
  size_t n_inputs = 0;
  size_t n_outputs = 0;
  std::vector<float> elems;  // [n_inputs, n_outputs]

  // Reads rows in a file's order, [n_outputs, n_inputs].
  static Matrix FromFile(size_t n_outputs, size_t n_inputs,
                         const std::vector<float>& rows);
};

struct LlamaConfig {
  uint32_t n_layers = 0;
  uint32_t d_model = 0;
  uint32_t d_ff = 0;
  uint32_t n_q_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // Training length, as the file states it.
  float norm_eps = 1e-5f;

  // RoPE rotates pair i, dims (2i, 2i+1), by position * inv_freq[i]. Dims
  // beyond the pairs are left alone. GGUF converters permute the rows of Wq and
  // Wk of half-split models into this order.
  std::vector<double> inv_freq;
};

struct LlamaLayer {
  std::vector<float> attention_norm;
  Matrix wq, wk, wv, wo;
  std::vector<float> ffn_norm;
  Matrix w_gate, w_up, w_down;
};

// A whole model in f32, whatever the file stored.
struct LlamaWeights {
  LlamaConfig config;
  std::vector<float> token_embedding;  // [vocab_size, d_model]
  std::vector<LlamaLayer> layers;
  std::vector<float> final_norm;
  Matrix output;  // To logits; often the token embedding once more.
};

// The usual frequencies base^(-2i / n_dims), i = 0 .. n_dims / 2 - 1.
std::vector<double> RopeInvFreq(uint32_t n_dims, double base);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_WEIGHTS_H_
