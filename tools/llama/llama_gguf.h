// LLaMA models in GGUF files.
#ifndef KVEVICT_TOOLS_LLAMA_LLAMA_GGUF_H_
#define KVEVICT_TOOLS_LLAMA_LLAMA_GGUF_H_

#include "tools/llama/gguf.h"
#include "tools/llama/tokenizer.h"
#include "tools/llama/weights.h"

namespace kvevict::tools {

// The model in a GGUF file of architecture "llama", dequantised to f32. A model
// with parts this engine does not compute (experts, biases, other RoPE scaling)
// is refused rather than run wrongly. Throws std::runtime_error.
LlamaWeights ReadGgufModel(const GgufFile& file);

// The SentencePiece tokenizer that the file carries.
Tokenizer ReadGgufTokenizer(const GgufFile& file);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_LLAMA_GGUF_H_
