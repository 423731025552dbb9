// The files of llama2.c.
#ifndef KVEVICT_TOOLS_LLAMA_LLAMA2C_H_
#define KVEVICT_TOOLS_LLAMA_LLAMA2C_H_

#include <string>

#include "tools/llama/tokenizer.h"
#include "tools/llama/weights.h"

namespace kvevict::tools {

// A model in llama2.c's first ("version 0") format: seven int32, then all
// weights in f32. Throws std::runtime_error naming file, place and reason.
LlamaWeights ReadLlama2cModel(const std::string& path);

// A tokenizer in llama2.c's format. It does not state its size, so the model's
// vocab_size is needed; the pieces must fill the file exactly.
Tokenizer ReadLlama2cTokenizer(const std::string& path, uint32_t vocab_size);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_LLAMA2C_H_
