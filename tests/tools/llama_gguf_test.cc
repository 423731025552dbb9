// GGUF files are read right, and damage is an error, never worse.
#include "tools/llama/llama_gguf.h"

#include <cmath>

#include "tests/tools/llama_allocation_limit.h"
#include "tests/tools/llama_synthetic.h"
#include "tests/tools/llama_test_util.h"
#include "tools/llama/gguf.h"
#include "tools/llama/model.h"

namespace kvevict::tools {
namespace {

// Opens the model, reads all of it and runs one token through it.
void LoadAndRun(const std::string& path) {
  const GgufFile file(path);
  LlamaWeights weights = ReadGgufModel(file);
  const Tokenizer tokenizer = ReadGgufTokenizer(file);
  tokenizer.Encode("abc ab");
  ThreadPool pool(1);
  LlamaModel model(std::move(weights), pool);
  KvCache cache(model.CacheShape(KVEVICT_DTYPE_F32, 2));
  std::vector<float> logits(model.config().vocab_size);
  const int32_t token = 1;
  model.Forward({&token, 1}, 0, cache, logits);
}

std::vector<uint8_t> SharedBytes(const std::string& path) {
  const std::string text = ReadFile(path);
  return {text.begin(), text.end()};
}

void CheckTruncations(const std::vector<uint8_t>& file, size_t n_directory) {
  TempFile temp({});
  for (size_t n = 0; n < file.size();
       n += n < n_directory ? 1 + n / 1000 : 1 + file.size() / 50) {
    temp.Write(std::span(file).first(n));
    const std::string error = ErrorOf([&] { LoadAndRun(temp.path()); });
    cr_expect(error.starts_with(temp.path() + ": ") &&
                  error.find("truncated") != std::string::npos,
              "cut at byte %zu: '%s'", n, error.c_str());
  }
}

void CheckBitFlips(std::vector<uint8_t> file, size_t n_directory, int n_flips) {
  TestRandom random(TestSeed());
  TempFile temp({});
  // If a damaged size is believed, an unexpected exception is thrown.
  LimitAllocations(16 * file.size() + (64 << 20));
  int n_refused = 0;
  for (int i = 0; i < n_flips; ++i) {
    const size_t at = random.Below(n_directory);
    const auto mask = static_cast<uint8_t>(1u << random.Below(8));
    file[at] ^= mask;
    temp.Write(file);
    // An error is fine, and so is success: a flipped bit of a name or a number
    // can leave a valid file. Any other exception or a signal ends the test.
    n_refused += ErrorOf([&] { LoadAndRun(temp.path()); }).empty() ? 0 : 1;
    file[at] ^= mask;
  }
  cr_expect(n_refused > n_flips / 10, "only %d of %d flips were noticed",
            n_refused, n_flips);
}

size_t DirectoryBytes(const std::vector<uint8_t>& file) {
  const TempFile temp(file);
  const GgufFile gguf(temp.path());
  size_t tensor_bytes = 0;
  for (const auto& [name, tensor] : gguf.tensors()) {
    tensor_bytes += tensor.data.size();
  }
  return file.size() - tensor_bytes;
}

Test(llama_gguf, reads_what_was_written) {
  GgufBuilder gguf;
  gguf.U32("a.count", 7);
  gguf.F32("a.ratio", 0.25f);
  gguf.String("a.name", "kv");
  gguf.Strings("a.words", {"x", "", "yz"});
  gguf.Numbers<int32_t>("a.ints", 5, {-1, 2});
  gguf.Tensor("t", {2, 3}, GgmlType::kF32, std::vector<uint8_t>(24, 1));
  for (const uint32_t version : {2, 3}) {
    const TempFile temp(gguf.Build(version));
    const GgufFile file(temp.path());
    cr_assert(file.Get<uint64_t>("a.count") == 7);
    cr_assert(file.Get<double>("a.ratio") == 0.25);
    cr_assert(file.Get<std::string_view>("a.name") == "kv");
    const auto words = file.Get<std::vector<std::string_view>>("a.words");
    cr_assert(words == std::vector<std::string_view>({"x", "", "yz"}));
    cr_assert(file.Get<std::vector<int64_t>>("a.ints") ==
              std::vector<int64_t>({-1, 2}));
    cr_assert(file.GetOr<uint64_t>("a.absent", 3) == 3);
    const GgufTensor* tensor = file.FindTensor("t");
    cr_assert(tensor != nullptr && tensor->n_elems() == 6);
    cr_assert(tensor->dims == std::vector<uint64_t>({2, 3}));
    cr_assert(tensor->data.size() == 24 && tensor->data[23] == 1);
    cr_assert(file.FindTensor("u") == nullptr);
  }
}

Test(llama_gguf, errors_name_the_place) {
  const auto error_of = [](const GgufBuilder& gguf, auto&& use,
                           uint32_t version = 3) {
    const TempFile temp(gguf.Build(version));
    return ErrorOf([&] { use(GgufFile(temp.path())); });
  };
  const auto open = [](const GgufFile&) {};
  const auto expect = [](const std::string& error, const char* part) {
    cr_expect(error.find(part) != std::string::npos, "'%s' lacks '%s'",
              error.c_str(), part);
  };
  GgufBuilder gguf;
  expect(error_of(gguf, open, 1), "version 1 is unsupported");
  expect(error_of(gguf, open, 3u << 24), "big-endian");
  gguf.U32("k", 1);
  expect(error_of(gguf, [](const GgufFile& f) { f.Get<uint64_t>("q"); }),
         "'q' is missing");
  expect(error_of(gguf, [](const GgufFile& f) { f.Get<double>("k"); }),
         "'k' has an unexpected type");
  GgufBuilder twice = gguf;
  twice.U32("k", 1);
  expect(error_of(twice, open), "'k' occurs twice");
  GgufBuilder q4 = gguf;
  q4.Tensor("w", {32}, static_cast<GgmlType>(12), std::vector<uint8_t>(18));
  expect(error_of(q4, open), "'w' is q4_K (12)");
  GgufBuilder partial = gguf;
  partial.Tensor("w", {33}, GgmlType::kQ8_0, std::vector<uint8_t>(68));
  expect(error_of(partial, open), "33 is not a multiple of q8_0's block of 32");
  GgufBuilder absurd = gguf;
  absurd.Tensor("w", {1ull << 40, 1ull << 40}, GgmlType::kF32, {});
  expect(error_of(absurd, open), "'w' has a zero or absurd size");
  GgufBuilder missing = gguf;
  missing.Tensor("w", {1000}, GgmlType::kF32, std::vector<uint8_t>(400));
  expect(error_of(missing, open), "'w' needs 4000 bytes at offset 0");
}

Test(llama_gguf, refuses_what_it_would_compute_wrongly) {
  const auto error_with = [](auto&& change) {
    GgufBuilder gguf = SyntheticModel(GgmlType::kF32);
    change(gguf);
    const TempFile temp(gguf.Build());
    return ErrorOf([&] { ReadGgufModel(GgufFile(temp.path())); });
  };
  cr_expect(error_with([](GgufBuilder&) {}).empty());
  const std::string bias = error_with([](GgufBuilder& gguf) {
    gguf.Tensor("blk.0.attn_q.bias", {64}, GgmlType::kF32,
                std::vector<uint8_t>(256));
  });
  cr_expect(bias.find("'blk.0.attn_q.bias' is no part") != std::string::npos);
  const std::string yarn = error_with([](GgufBuilder& gguf) {
    gguf.String("llama.rope.scaling.type", "yarn");
  });
  cr_expect(yarn.find("'yarn' is unsupported") != std::string::npos);
}

// Small files claim large models: the error comes before the allocation.
Test(llama_gguf, sizes_that_the_file_cannot_hold_are_refused_at_once) {
  LimitAllocations(16 << 20);
  // A RoPE table of 2^30 frequencies.
  GgufBuilder wide;
  wide.String("general.architecture", "llama");
  for (const auto& [key, value] :
       {std::pair("block_count", 1u), std::pair("context_length", 128u),
        std::pair("embedding_length", 0x7ffffffeu),
        std::pair("feed_forward_length", 96u),
        std::pair("attention.head_count", 1u)}) {
    wide.U32(std::string("llama.") + key, value);
  }
  wide.Tensor("token_embd.weight", {64, 300}, GgmlType::kF32,
              std::vector<uint8_t>(64 * 300 * 4));
  const TempFile table(wide.Build());
  std::string error = ErrorOf([&] { LoadAndRun(table.path()); });
  cr_expect(
      error.find("embedding_length is 2147483646, but rows of tensor "
                 "'token_embd.weight' have 64 elements") != std::string::npos,
      "%s", error.c_str());
  // The file has 1.2 MB, and its 2,000 tensors claim 1 MB each.
  GgufBuilder gguf;
  gguf.Tensor("weight", {512, 512}, GgmlType::kF32,
              std::vector<uint8_t>(512 * 512 * 4));
  for (int i = 0; i < 2000; ++i) {
    gguf.TensorAt("weight" + std::to_string(i), {512, 512}, GgmlType::kF32, 0);
  }
  const TempFile shared(gguf.Build());
  error = ErrorOf([&] { const GgufFile file(shared.path()); });
  cr_expect(error.find("overlap") != std::string::npos, "%s", error.c_str());
  // One byte is too much.
  GgufBuilder near;
  near.Tensor("a", {33}, GgmlType::kF32, std::vector<uint8_t>(33 * 4));
  near.TensorAt("b", {1}, GgmlType::kF32, 128);
  const TempFile touching(near.Build());
  error = ErrorOf([&] { const GgufFile file(touching.path()); });
  cr_expect(error.find("tensors 'a' and 'b' overlap") != std::string::npos,
            "%s", error.c_str());
}

Test(llama_gguf, halves_are_decoded_exactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = (bits & 1023) / 1024.0;
    const float decoded = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      cr_assert(std::isnan(decoded));
      continue;
    }
    double expected = exponent == 0 ? std::ldexp(fraction, -14)
                                    : std::ldexp(1 + fraction, exponent - 15);
    if (exponent == 31) expected = INFINITY;
    if (bits & 0x8000) expected = -expected;
    cr_assert(decoded == static_cast<float>(expected) &&
                  std::signbit(decoded) == std::signbit(expected),
              "%x gives %g", bits, static_cast<double>(decoded));
  }
}

// Blocks of 32: scale, minimum, then 16 bytes with the first 16 elements in their low
// halves.
Test(llama_gguf, reads_codes_of_4_bits_with_minima) {
  std::vector<uint8_t> blocks;
  for (int block = 0; block < 2; ++block) {
    const uint16_t scale = block == 0 ? 0x3800 : 0xc000;    // 0.5, -2
    const uint16_t minimum = block == 0 ? 0xbc00 : 0x4200;  // -1, 3
    for (const uint16_t half : {scale, minimum}) {
      blocks.push_back(half & 0xff);
      blocks.push_back(half >> 8);
    }
    for (int i = 0; i < 16; ++i) {
      blocks.push_back(static_cast<uint8_t>((15 - i) << 4 | i));
    }
  }
  GgufBuilder gguf;
  gguf.Tensor("t", {32, 2}, GgmlType::kQ4_1, blocks);
  const TempFile temp(gguf.Build());
  const GgufFile file(temp.path());
  const GgufTensor* tensor = file.FindTensor("t");
  cr_assert(tensor != nullptr && tensor->data.size() == 40);
  std::vector<float> values(64);
  Dequantize(tensor->type, tensor->data, values);
  for (int i = 0; i < 64; ++i) {
    const int code = i % 32 < 16 ? i % 16 : 15 - i % 16;
    const float expected = i < 32 ? 0.5f * static_cast<float>(code) - 1.0f
                                  : -2.0f * static_cast<float>(code) + 3.0f;
    cr_expect(values[i] == expected, "%d: %g, not %g", i,
              static_cast<double>(values[i]), static_cast<double>(expected));
  }
}

Test(llama_gguf, every_type_loads_as_the_same_model) {
  const auto load = [](GgmlType type) {
    const TempFile temp(SyntheticModel(type).Build());
    return ReadGgufModel(GgufFile(temp.path()));
  };
  const LlamaWeights f32 = load(GgmlType::kF32);
  const std::vector<int> first = SyntheticQuants("token_embd.weight", 2);
  cr_assert(f32.token_embedding[1] == std::ldexp(first[1], -9));
  // Files hold [outputs, inputs]; the second input of the first output is
  // W[1][0].
  const std::vector<int> q = SyntheticQuants("blk.1.attn_q.weight", 2);
  cr_assert(f32.layers[1].wq.elems[64] == std::ldexp(q[1], -9));
  for (const GgmlType type :
       {GgmlType::kF16, GgmlType::kBf16, GgmlType::kQ8_0}) {
    const LlamaWeights other = load(type);
    const char* name = FindGgmlType(static_cast<uint32_t>(type))->name;
    cr_expect(f32.token_embedding == other.token_embedding, "%s", name);
    cr_expect(f32.output.elems == other.output.elems, "%s", name);
    for (size_t l = 0; l < f32.layers.size(); ++l) {
      const auto same = [&](Matrix LlamaLayer::*matrix) {
        return (f32.layers[l].*matrix).elems == (other.layers[l].*matrix).elems;
      };
      cr_expect(same(&LlamaLayer::wq) && same(&LlamaLayer::wk) &&
                    same(&LlamaLayer::wv) && same(&LlamaLayer::wo) &&
                    same(&LlamaLayer::w_gate) && same(&LlamaLayer::w_up) &&
                    same(&LlamaLayer::w_down),
                "%s layer %zu", name, l);
    }
  }
}

Test(llama_gguf, truncated_files_are_refused) {
  const std::vector<uint8_t> file = SyntheticModel(GgmlType::kQ8_0).Build();
  CheckTruncations(file, DirectoryBytes(file));
}

Test(llama_gguf, damaged_files_never_crash) {
  const std::vector<uint8_t> file = SyntheticModel(GgmlType::kQ8_0).Build();
  CheckBitFlips(file, DirectoryBytes(file), 3000);
}

Test(llama_gguf, truncated_real_files_are_refused) {
  KV_SHARED_FILE(path, "models/stories260K.gguf");
  const std::vector<uint8_t> file = SharedBytes(path);
  CheckTruncations(file, DirectoryBytes(file));
}

Test(llama_gguf, damaged_real_files_never_crash) {
  KV_SHARED_FILE(path, "models/stories260K.gguf");
  const std::vector<uint8_t> file = SharedBytes(path);
  CheckBitFlips(file, DirectoryBytes(file), 500);
}

}  // namespace
}  // namespace kvevict::tools
