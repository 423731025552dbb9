// llama2.c's files are read right, and damage is an error.
#include "tests/tools/llama_allocation_limit.h"
#include "tests/tools/llama_test_util.h"
#include "tools/llama/llama2c.h"
#include "tools/llama/model_file.h"

namespace kvevict::tools {
namespace {

constexpr int32_t kVocab = 5;

void Put(std::vector<uint8_t>& out, const auto& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(value));
}

// dim 8, hidden_dim 6, 2 layers, 2 heads of 4, 1 KV head; weight i is i.
std::vector<uint8_t> MakeModel(bool tied) {
  std::vector<uint8_t> file;
  for (const int32_t field : {8, 6, 2, 2, 1, tied ? kVocab : -kVocab, 16}) {
    Put(file, field);
  }
  const int n_layer = 8 + 64 + 32 + 32 + 64 + 8 + 3 * 48;
  const int n_floats =
      kVocab * 8 * (tied ? 1 : 2) + 2 * n_layer + 8 + 2 * 16 * 4 / 2;
  for (int i = 0; i < n_floats; ++i) Put(file, static_cast<float>(i));
  return file;
}

std::vector<uint8_t> MakeTokenizer() {
  std::vector<uint8_t> file;
  Put(file, int32_t{5});
  for (const std::string piece : {"<unk>", "<s>", "</s>", " ", "a"}) {
    Put(file, -1.5f);
    Put(file, static_cast<int32_t>(piece.size()));
    file.insert(file.end(), piece.begin(), piece.end());
  }
  return file;
}

Test(llama2c, weights_lie_where_the_format_says) {
  for (const bool tied : {true, false}) {
    const TempFile temp(MakeModel(tied));
    const LlamaWeights w = ReadLlama2cModel(temp.path());
    cr_assert(w.config.head_dim == 4 && w.config.n_kv_heads == 1);
    cr_assert(w.config.context_length == 16 && w.config.vocab_size == 5);
    cr_assert(w.token_embedding[39] == 39);
    cr_assert(w.layers[1].attention_norm[0] == 48);
    const float wq0 = 56;  // After 40 embeddings and 2 * 8 norms.
    cr_assert(w.layers[0].wq.elems[0] == wq0);
    cr_assert(w.layers[0].wq.elems[1] == wq0 + 8);  // Output 1, input 0.
    cr_assert(w.layers[1].wq.elems[0] == wq0 + 64);
    cr_assert(w.layers[0].wk.elems[0] == wq0 + 128);
    cr_assert(w.layers[0].wk.n_outputs == 4 && w.layers[0].wk.n_inputs == 8);
    const float final_norm = wq0 + 128 + 64 + 64 + 128 + 16 + 6 * 48;
    cr_assert(w.final_norm[0] == final_norm, "%g", w.final_norm[0]);
    // A separate output matrix lies behind the final norm and the RoPE tables.
    cr_assert(w.output.elems[0] == (tied ? 0 : final_norm + 8 + 64));
    cr_assert(w.output.elems[1] == w.output.elems[0] + 8);
  }
}

Test(llama2c, truncated_and_damaged_models_are_refused) {
  const std::vector<uint8_t> file = MakeModel(true);
  TempFile temp({});
  LimitAllocations(64 << 20);
  const auto refused = [&](std::span<const uint8_t> bytes) {
    temp.Write(bytes);
    const std::string error = ErrorOf([&] { ReadLlama2cModel(temp.path()); });
    return error.starts_with(temp.path() + ": at byte ");
  };
  for (size_t n = 0; n < file.size(); ++n) {
    cr_assert(refused(std::span(file).first(n)), "cut at byte %zu", n);
  }
  std::vector<uint8_t> damaged = file;
  damaged.push_back(0);
  cr_assert(refused(damaged), "a byte too many");
  TestRandom random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    damaged = file;
    const size_t at = random.Below(28);
    damaged[at] ^= static_cast<uint8_t>(1 + random.Below(255));
    cr_assert(refused(damaged), "byte %zu is %d", at, damaged[at]);
  }
}

Test(llama2c, truncated_and_damaged_tokenizers_are_refused) {
  const std::vector<uint8_t> file = MakeTokenizer();
  TempFile temp(file);
  const Tokenizer tokenizer = ReadLlama2cTokenizer(temp.path(), kVocab);
  cr_assert(tokenizer.Encode("a") == std::vector<int32_t>({1, 3, 4}));
  const auto error_of = [&](std::span<const uint8_t> bytes, uint32_t n_vocab) {
    temp.Write(bytes);
    return ErrorOf([&] { ReadLlama2cTokenizer(temp.path(), n_vocab); });
  };
  LimitAllocations(64 << 20);
  for (size_t n = 0; n < file.size(); ++n) {
    const std::string error = error_of(std::span(file).first(n), kVocab);
    cr_assert(error.find("truncated") != std::string::npos, "cut at byte %zu",
              n);
  }
  cr_assert(!error_of(file, kVocab - 1).empty());
  cr_assert(!error_of(file, kVocab + 1).empty());
  cr_assert(!error_of(file, 1u << 31).empty());
  TestRandom random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> damaged = file;
    damaged[random.Below(file.size())] ^=
        static_cast<uint8_t>(1 + random.Below(255));
    error_of(damaged, kVocab);
  }
}

Test(llama2c, the_tokenizer_is_found_beside_the_model) {
  const TempFile model(MakeModel(true), ".bin");
  std::string stem = model.path();
  stem.resize(stem.size() - 4);
  const std::string error = ErrorOf([&] { ReadModelFile(model.path(), ""); });
  cr_assert(error.find("no tokenizer beside it") != std::string::npos, "%s",
            error.c_str());
  const TempFile elsewhere(MakeTokenizer());
  cr_assert(
      ReadModelFile(model.path(), elsewhere.path()).tokenizer.vocab_size() ==
      kVocab);
  std::filesystem::copy(elsewhere.path(), stem + ".tok");
  const ModelFile found = ReadModelFile(model.path(), "");
  std::filesystem::remove(stem + ".tok");
  cr_assert(found.tokenizer.vocab_size() == kVocab);
}

}  // namespace
}  // namespace kvevict::tools
