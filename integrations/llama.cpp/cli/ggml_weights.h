// Weights of a model in GGUF, read through ggml.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_GGML_WEIGHTS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_GGML_WEIGHTS_H_

#include <llama.h>

#include <string>

#include "tools/llama/weights.h"

namespace kvevict::llama_cli {

// The weights of `model`, which was loaded from the file `path`, in f32. Every
// type that ggml decodes is read. Throws std::runtime_error for what the engine
// does not run: another architecture, experts, biases, RoPE that is scaled by
// YaRN or LongRoPE.
tools::LlamaWeights ReadWeights(const llama_model* model,
                                const std::string& path);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_GGML_WEIGHTS_H_
