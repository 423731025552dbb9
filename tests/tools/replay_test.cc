// Evictions of dumped caches, held against sums in double precision and against
// the keep sets of published implementations.
#include <criterion/criterion.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/expect_part.h"
#include "tests/paths.h"
#include "tools/replay/npy.h"
#include "tools/replay/replay.h"
#include "tools/replay/safetensors.h"

namespace kvevict::tools {
namespace {

namespace fs = std::filesystem;
using tests::ExpectPart;

constexpr uint32_t kLayers = 2, kQueryHeads = 4, kHeads = 2, kTokens = 40;
constexpr uint32_t kDim = 8, kRows = 12, kMeasured = 5;
constexpr uint32_t kGroup = kQueryHeads / kHeads;

// A folder of its own for a test.
class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("kvevict_replay_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  fs::path path_;
};

// An array [heads, tokens, dim] in single precision.
struct Rows {
  uint32_t n_heads = 0, n_tokens = 0;
  std::vector<float> values;
  double At(uint32_t h, uint32_t t, uint32_t e) const {
    return double{values[(size_t{h} * n_tokens + t) * kDim + e]};
  }
};

// Values that f16 and bf16 hold exactly.
Rows MakeRows(std::mt19937& random, uint32_t n_heads, uint32_t n_tokens) {
  Rows rows{n_heads, n_tokens, {}};
  for (size_t i = 0; i < size_t{n_heads} * n_tokens * kDim; ++i) {
    rows.values.push_back((static_cast<float>(random() % 255) - 127.0f) /
                          64.0f);
  }
  return rows;
}

struct Layer {
  Rows k, v, q;
};

std::vector<Layer> MakeLayers(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Layer> layers;
  for (uint32_t l = 0; l < kLayers; ++l) {
    layers.push_back({MakeRows(random, kHeads, kTokens),
                      MakeRows(random, kHeads, kTokens),
                      MakeRows(random, kQueryHeads, kRows)});
  }
  return layers;
}

enum class Type { kF32, kF16, kBf16 };

std::string Element(float value, Type type) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (type == Type::kF32) return std::string(reinterpret_cast<char*>(&bits), 4);
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  if (type == Type::kF16) {
    const uint32_t exponent = bits >> 23 & 255;
    half = value == 0.0f ? 0
                         : static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                                 (exponent - 112) << 10 |
                                                 (bits >> 13 & 1023));
  }
  return std::string(reinterpret_cast<char*>(&half), 2);
}

std::string Data(const Rows& rows, Type type, bool tokens_first) {
  std::string data;
  for (uint32_t a = 0; a < (tokens_first ? rows.n_tokens : rows.n_heads); ++a) {
    for (uint32_t b = 0; b < (tokens_first ? rows.n_heads : rows.n_tokens);
         ++b) {
      const size_t first = (tokens_first ? size_t{b} * rows.n_tokens + a
                                         : size_t{a} * rows.n_tokens + b) *
                           kDim;
      for (uint32_t e = 0; e < kDim; ++e) {
        data += Element(rows.values[first + e], type);
      }
    }
  }
  return data;
}

const char* NpyType(Type type) {
  return type == Type::kF32 ? "<f4" : type == Type::kF16 ? "<f2" : "<V2";
}

// One file per layer, or with the layers as an axis.
void WriteNpy(const Folder& folder, const std::vector<Layer>& layers, Type type,
              bool tokens_first, bool stacked) {
  for (const auto& [name, rows] :
       {std::pair{"k", &Layer::k}, {"v", &Layer::v}, {"q", &Layer::q}}) {
    std::string all;
    std::vector<uint64_t> shape;
    for (uint32_t l = 0; l < layers.size(); ++l) {
      const Rows& r = layers[l].*rows;
      const std::string data = Data(r, type, tokens_first);
      shape = tokens_first ? std::vector<uint64_t>{r.n_tokens, r.n_heads, kDim}
                           : std::vector<uint64_t>{r.n_heads, r.n_tokens, kDim};
      all += data;
      if (stacked) continue;
      shape.insert(shape.begin(), 1);  // a batch, as in PyTorch
      folder.Write(std::string(name) + "." + std::to_string(l) + ".npy",
                   NpyHeader(NpyType(type), shape) + data);
    }
    if (!stacked) continue;
    shape.insert(shape.begin(), layers.size());
    folder.Write(std::string(name) + ".npy",
                 NpyHeader(NpyType(type), shape) + all);
  }
}

// What query i of the measured ones sees, in double precision: weights of the
// tokens that stay, and the output.
struct Seen {
  std::vector<double> weights, out;
};

Seen Attend(const Layer& layer, uint32_t q_head, uint32_t i,
            const std::vector<bool>& stays) {
  const uint32_t h = q_head / kGroup, row = kRows - kMeasured + i;
  const uint32_t position = kTokens - kMeasured + i;
  Seen seen{std::vector<double>(kTokens), std::vector<double>(kDim)};
  double sum = 0;
  for (uint32_t t = 0; t <= position; ++t) {
    if (!stays[t]) continue;
    double logit = 0;
    for (uint32_t e = 0; e < kDim; ++e) {
      logit += layer.q.At(q_head, row, e) * layer.k.At(h, t, e);
    }
    seen.weights[t] = std::exp(logit / std::sqrt(double{kDim}));
    sum += seen.weights[t];
  }
  for (uint32_t t = 0; t <= position; ++t) {
    seen.weights[t] /= sum;
    for (uint32_t e = 0; e < kDim; ++e) {
      seen.out[e] += seen.weights[t] * layer.v.At(h, t, e);
    }
  }
  return seen;
}

// Compares mass and error of every head with sums over all queries.
void ExpectMeasures(const std::vector<Layer>& layers, const Replayed& replayed,
                    uint32_t n_held) {
  double mean_mass = 0, mean_error = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    double layer_lost = 0, layer_whole = 0;
    for (uint32_t h = 0; h < kHeads; ++h) {
      const ReplayHead& head = replayed.layers[l].heads[h];
      std::vector<bool> stays(kTokens), all(kTokens, true);
      for (const int32_t p : head.positions)
        stays[static_cast<size_t>(p)] = true;
      for (uint32_t t = n_held; t < kTokens; ++t) stays[t] = true;
      double kept = 0, lost = 0, whole = 0;
      for (uint32_t q = h * kGroup; q < (h + 1) * kGroup; ++q) {
        for (uint32_t i = 0; i < kMeasured; ++i) {
          const Seen before = Attend(layers[l], q, i, all);
          const Seen after = Attend(layers[l], q, i, stays);
          for (uint32_t t = 0; t < kTokens; ++t) {
            kept += stays[t] ? before.weights[t] : 0;
          }
          for (uint32_t e = 0; e < kDim; ++e) {
            lost += std::pow(after.out[e] - before.out[e], 2);
            whole += std::pow(before.out[e], 2);
          }
        }
      }
      // f32 exponentials and sums of up to 40 terms: some 1e-6 of each.
      const double mass = kept / (kGroup * kMeasured);
      const double error = std::sqrt(lost / whole);
      cr_expect(std::abs(head.mass - mass) < 1e-5, "mass %g, not %g", head.mass,
                mass);
      cr_expect(std::abs(head.error - error) < 1e-5, "error %g, not %g",
                head.error, error);
      mean_mass += mass / (kLayers * kHeads);
      layer_lost += lost;
      layer_whole += whole;
    }
    mean_error += std::sqrt(layer_lost / layer_whole) / kLayers;
  }
  cr_expect(std::abs(replayed.mass - mean_mass) < 1e-5);
  cr_expect(std::abs(replayed.error - mean_error) < 1e-5);
}

struct Opened {
  TensorFiles files;
  Dump dump;
  explicit Opened(const std::string& path, const DumpOptions& options = {})
      : files(std::vector<std::string>{path}), dump(ReadDump(files, options)) {}
};

Replayed Evict(const Opened& opened, const std::string& text,
               const ReplayOptions& options) {
  const std::vector<Policy> policies = {Policy(text)};
  const uint32_t n_held =
      opened.dump.n_tokens - (options.unseen ? options.n_measured : 0);
  const DumpInputs inputs(opened.files, opened.dump, n_held, policies);
  ThreadPool pool(2);
  Replay replay(opened.dump, inputs, options, pool);
  cr_assert(replay.n_held() == n_held);
  return replay.Evict(policies[0]);
}

// The error's text; "" if there is none.
template <typename Body>
std::string Refusal(Body body) {
  try {
    body();
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

TestSuite(replay);

Test(replay, measures_agree_with_double_precision) {
  const Folder folder;
  const std::vector<Layer> layers = MakeLayers(1);
  WriteNpy(folder, layers, Type::kF32, false, false);
  const Opened opened(folder.path());
  for (const bool unseen : {false, true}) {
    for (const char* policy :
         {"snapkv:budget=12,sink=0,window=4", "knorm:budget=0.25,recent=0",
          // Heads of different lengths.
          "snapkv:budget=12,sink=0,window=4,heads=adaptive", "none",
          "h2o:budget=9,sink=1,recent=2"}) {
      const Replayed replayed =
          Evict(opened, policy, {.n_measured = kMeasured, .unseen = unseen});
      ExpectMeasures(layers, replayed, kTokens - (unseen ? kMeasured : 0));
    }
  }
}

Test(replay, what_is_measured_does_not_depend_on_type_and_layout) {
  const std::vector<Layer> layers = MakeLayers(2);
  std::vector<std::vector<int32_t>> expected;
  for (const Type type : {Type::kF32, Type::kF16, Type::kBf16}) {
    for (const bool tokens_first : {false, true}) {
      for (const bool stacked : {false, true}) {
        const Folder folder;
        WriteNpy(folder, layers, type, tokens_first, stacked);
        DumpOptions options;
        options.tokens_first = tokens_first;
        const Opened opened(folder.path(), options);
        const Replayed replayed =
            Evict(opened, "snapkv:budget=12,sink=0,window=4",
                  {.n_measured = kMeasured});
        ExpectMeasures(layers, replayed, kTokens);
        std::vector<std::vector<int32_t>> positions;
        for (const ReplayLayer& layer : replayed.layers) {
          for (const ReplayHead& head : layer.heads) {
            positions.push_back(head.positions);
          }
        }
        if (expected.empty()) expected = positions;
        cr_expect(positions == expected);
      }
    }
  }
}

Test(replay, unseen_queries_do_not_choose) {
  const Folder folder;
  std::vector<Layer> layers = MakeLayers(3);
  WriteNpy(folder, layers, Type::kF32, false, false);
  const char* policy = "snapkv:budget=12,sink=0,window=4";
  const ReplayOptions options = {.n_measured = kMeasured, .unseen = true};
  const Replayed before = Evict(Opened(folder.path()), policy, options);
  // Other last queries, keys and values.
  for (Layer& layer : layers) {
    for (Rows* rows : {&layer.k, &layer.v, &layer.q}) {
      for (uint32_t h = 0; h < rows->n_heads; ++h) {
        for (uint32_t t = rows->n_tokens - kMeasured; t < rows->n_tokens; ++t) {
          for (uint32_t e = 0; e < kDim; ++e) {
            rows->values[(size_t{h} * rows->n_tokens + t) * kDim + e] = 1.5f;
          }
        }
      }
    }
  }
  WriteNpy(folder, layers, Type::kF32, false, false);
  const Replayed after = Evict(Opened(folder.path()), policy, options);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      cr_expect(before.layers[l].heads[h].positions ==
                after.layers[l].heads[h].positions);
    }
  }
  cr_expect(before.error != after.error);
}

Test(replay, what_a_dump_lacks_is_named) {
  const Folder folder;
  WriteNpy(folder, MakeLayers(4), Type::kF32, false, false);
  const Opened opened(folder.path());
  const auto refusal = [&](const std::string& policy, bool unseen) {
    return Refusal([&] {
      Evict(opened, policy, {.n_measured = kMeasured, .unseen = unseen});
    });
  };
  ExpectPart(refusal("custom:budget=9", false), "it needs tensor 'scores'");
  ExpectPart(refusal("expected-attention:budget=9", false),
             "it needs tensor 'query_mean'");
  ExpectPart(refusal("non-causal:budget=9", false),
             "queries of all 40 tokens, but tensor 'q' has 12 rows");
  ExpectPart(refusal("snapkv:budget=20,window=8", true),
             "the last 8 tokens, but tensor 'q' has 12 rows, 5 of them "
             "unseen");
  ExpectPart(refusal("knorm:budget=9,rotate=yes", false), "rotates keys");
  ExpectPart(refusal("snapkv:budget=3,window=8", false), "3");
  const float numbers[4] = {};
  folder.Write("scores.0.npy",
               NpyHeader("<f4", std::vector<uint64_t>{2, 2}) +
                   std::string(reinterpret_cast<const char*>(numbers), 16));
  ExpectPart(
      Refusal([&] { Evict(Opened(folder.path()), "custom:budget=9", {}); }),
      "it is there for 1 layers, K for 2");
}

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
}

Test(replay, scores_and_sums_of_the_caller_choose) {
  const Folder folder;
  std::vector<Layer> layers = MakeLayers(5);
  layers.resize(1);
  WriteNpy(folder, layers, Type::kF32, false, false);
  fs::remove(folder.path() + "/q.0.npy");
  // Head 0 likes even tokens, head 1 multiples of three.
  std::vector<float> scores;
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (uint32_t t = 0; t < kTokens; ++t) {
      scores.push_back(t % (h + 2) == 0 ? 1.0f : 0.0f);
    }
  }
  // Two query heads for each KV head, whose sums are added up.
  std::vector<float> sums;
  for (uint32_t q = 0; q < kQueryHeads; ++q) {
    const auto begin = scores.begin() + (q / kGroup) * kTokens;
    sums.insert(sums.end(), begin, begin + kTokens);
  }
  folder.Write("scores.npy",
               NpyHeader("<f4", std::vector<uint64_t>{kHeads, kTokens}) +
                   Floats(scores));
  folder.Write("attention_sums.npy",
               NpyHeader("<f4", std::vector<uint64_t>{kQueryHeads, kTokens}) +
                   Floats(sums));
  const Opened opened(folder.path());
  for (const char* policy : {"custom:budget=14,sink=0,recent=1",
                             "h2o:budget=14,sink=0,recent=1,rows=sum"}) {
    const Replayed replayed = Evict(opened, policy, {});
    for (uint32_t h = 0; h < kHeads; ++h) {
      std::vector<int32_t> expected;
      for (int32_t t = 0; expected.size() < 13;
           t += static_cast<int32_t>(h) + 2) {
        expected.push_back(t);
      }
      expected.push_back(kTokens - 1);
      cr_expect(replayed.layers[0].heads[h].positions == expected, "%s, %u",
                policy, h);
    }
  }
  // Rows of no head, and of a number that no head has.
  for (const uint64_t n : {0, 3}) {
    folder.Write("attention_sums.npy",
                 NpyHeader("<f4", std::vector<uint64_t>{n, kTokens}) +
                     std::string(n * kTokens * 4, '\0'));
    ExpectPart(Refusal([&] {
                 Evict(Opened(folder.path()), "h2o:budget=14,recent=1", {});
               }),
               "layer 0 has to be [2, 40]");
  }
}

// The expected numbers come from a published implementation.
std::vector<int32_t> KeptOf(const std::string& folder) {
  const MappedFile file(folder + "/keep.npy");
  const Tensor tensor = ReadNpy(file.path(), file.bytes());
  std::vector<int32_t> kept(tensor.bytes.size() / sizeof(int32_t));
  std::memcpy(kept.data(), tensor.bytes.data(), tensor.bytes.size());
  return kept;
}

Test(replay, wrong_shapes_are_named) {
  const auto refusal = [](std::vector<uint64_t> k, std::vector<uint64_t> v,
                          std::vector<uint64_t> q, const char* type = "<f4") {
    const Folder folder;
    for (const auto& [name, shape] : {std::pair{"k", k}, {"v", v}, {"q", q}}) {
      if (shape.empty()) continue;
      const uint64_t n = *ArrayBytes(shape, 4);
      folder.Write(std::string(name) + ".npy",
                   NpyHeader(type, shape) + std::string(n, '\0'));
    }
    return Refusal([&] { Opened opened(folder.path()); });
  };
  cr_expect(refusal({2, 9, 4}, {2, 9, 6}, {4, 3, 4}) == "");
  ExpectPart(refusal({}, {2, 9, 4}, {}),
             "no tensor 'k' or 'k.0'; --k names "
             "another. The files have: v");
  ExpectPart(refusal({9, 4}, {2, 9, 4}, {}), "it has 2 axes, not 3, or 4");
  ExpectPart(refusal({2, 0, 4}, {2, 0, 4}, {}), "tokens 0 are not in [1, ");
  ExpectPart(refusal({2, 9, 4}, {2, 8, 4}, {}), "V has 2 heads and 8 tokens");
  ExpectPart(refusal({2, 9, 4}, {2, 9, 4}, {3, 3, 4}),
             "query heads 3 are no multiple of KV heads 2");
  ExpectPart(refusal({2, 9, 4}, {2, 9, 4}, {2, 3, 5}),
             "rows of 5 elements, but keys have 4");
  ExpectPart(refusal({2, 9, 4}, {2, 9, 4}, {2, 10, 4}),
             "rows 10 are more than the tokens, 9");
  ExpectPart(refusal({2, 9, 4}, {3, 2, 9, 4}, {}),
             "it is there for 3 layers, K for 1");
  ExpectPart(refusal({2, 9, 4}, {2, 9, 4}, {}, "<i4"),
             "its type <i4 is not f32, f16 or bf16");
  ExpectPart(refusal({0, 2, 9, 4}, {0, 2, 9, 4}, {}),
             "layers 0 are not in [1, 4096]");
}

Test(replay, tensors_of_one_name_are_refused) {
  const Folder folder;
  folder.Write("k.npy", NpyHeader("<f4", std::vector<uint64_t>{1, 1, 1}) +
                            std::string(4, '\0'));
  const std::string file = folder.path() + "/k.npy";
  ExpectPart(Refusal([&] {
               TensorFiles files(std::vector<std::string>{file, file});
             }),
             "tensor 'k' is in");
}

Test(replay, recorded_keep_sets_are_reproduced) {
  const struct {
    const char* folder;
    const char* policy;
  } cases[] = {
      {"snapkv_kvpress__gqa8x2_D64_S512_W32",
       "snapkv-kvpress:budget=0.5,window=32"},
      {"snapkv_kvpress__mha4x4_D64_S96_W8",
       "snapkv-kvpress:budget=0.6,window=8,pool=avg3"},
      {"knorm_kvpress__h2_D64_S96", "knorm-kvpress"},
      {"keydiff_kvpress__h2_D64_S96", "keydiff-kvpress"},
      {"tova_kvpress__gqa8x2_D64_S96", "tova-kvpress"},
      {"expected_attention_kvpress__gqa4x2_D64_S509_novnorm",
       "expected-attention-kvpress:budget=0.7,sink=8,weight=none"},
  };
  for (const auto& [name, policy] : cases) {
    const std::string source =
        std::string(test_shared_dir) + "/vectors/" + name;
    if (!fs::exists(source)) {
      fprintf(stderr, "skipped: no reference vectors in %s\n", source.c_str());
      cr_skip_test("no reference vectors in %s", source.c_str());
    }
    const Folder folder;
    for (const auto& [from, to] : {std::pair{"/K.npy", "/keys.npy"},
                                   {"/V.npy", "/values.npy"},
                                   {"/Q.npy", "/queries.npy"},
                                   {"/mean.npy", "/query_mean.npy"},
                                   {"/cov.npy", "/query_covariance.npy"}}) {
      if (!fs::exists(source + from)) continue;
      fs::copy_file(source + from, folder.path() + to);
    }
    DumpOptions names;
    names.k = "keys";
    if (fs::exists(source + "/V.npy")) names.v = "values";
    if (fs::exists(source + "/Q.npy")) names.q = "queries";
    const Replayed replayed = Evict(Opened(folder.path(), names), policy, {});
    std::vector<int32_t> kept;
    for (const ReplayHead& head : replayed.layers[0].heads) {
      kept.insert(kept.end(), head.positions.begin(), head.positions.end());
    }
    cr_expect(kept == KeptOf(source), "%s", name);
  }
}

}  // namespace
}  // namespace kvevict::tools
