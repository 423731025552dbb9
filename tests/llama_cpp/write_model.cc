// write_model PATH ARCH: a random model for a server.
#include <cstdio>
#include <exception>

#include "tests/llama_cpp/random_model.h"

int main(int, char** argv) {
  try {
    kvevict::tests::RandomModel model;
    model.arch = argv[2];
    model.has_characters = true;
    // gemma3 then has a layer without a window; lfm2's heads share its width.
    model.n_layers = model.arch == "llama" ? 3 : 7;
    if (model.arch == "lfm2") model.head_dim = model.n_embd / model.n_heads;
    const std::string path = kvevict::tests::WriteRandomModel(model);
    return std::rename(path.c_str(), argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
