// Models with random weights in files that llama.cpp loads.
#ifndef KVEVICT_TESTS_LLAMA_CPP_RANDOM_MODEL_H_
#define KVEVICT_TESTS_LLAMA_CPP_RANDOM_MODEL_H_

#include <ggml.h>

#include <cstdint>
#include <string>

namespace kvevict::tests {

struct RandomModel {
  std::string arch =
      "llama";  // or qwen2vl, qwen3, gemma2, gemma3, deepseek2, lfm2, bloom, gpt-oss
  ggml_type type = GGML_TYPE_F32;  // of the matrices
  uint32_t n_layers = 3;
  uint32_t n_embd = 64;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t n_ff = 96;
  uint32_t n_vocab = 256;
  uint32_t n_ctx = 16384;
  uint32_t window = 32;    // gemma2, gemma3
  uint32_t long_rope = 0;  // llama: the length from which on LongRoPE stretches
  std::string
      tokenizer;  // a model file that has one for n_vocab tokens; "": none
  // Tokens are characters, see server.py, and the output has weights of its own, so
  // that answers depend on the prompt. A server needs that.
  bool has_characters = false;
};

// Seven layers, so that one of gemma3's has no window.
inline RandomModel SevenLayers(const char* arch) {
  RandomModel shape;
  shape.arch = arch;
  shape.n_layers = 7;
  shape.n_embd = shape.n_heads * shape.head_dim;
  return shape;
}

// Writes a model of this shape to a file of its own, which the caller removes.
std::string WriteRandomModel(const RandomModel& model);

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_LLAMA_CPP_RANDOM_MODEL_H_
