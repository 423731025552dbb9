// Opens a model, whatever its format.
#ifndef KVEVICT_TOOLS_LLAMA_MODEL_FILE_H_
#define KVEVICT_TOOLS_LLAMA_MODEL_FILE_H_

#include <string>

#include "tools/llama/tokenizer.h"
#include "tools/llama/weights.h"

namespace kvevict::tools {

struct ModelFile {
  LlamaWeights weights;
  Tokenizer tokenizer;
};

// Reads a model and its tokenizer. The format is recognised by the content.
// GGUF files contain their tokenizer. For llama2.c files it is
// `tokenizer_path`, or if that is empty the first of <model's stem>.tok,
// tok<vocab_size>.bin and tokenizer.bin in the model's folder. Throws
// std::runtime_error.
ModelFile ReadModelFile(const std::string& path,
                        const std::string& tokenizer_path);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_MODEL_FILE_H_
