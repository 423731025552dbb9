// `kvevict replay` as its user sees it.
#include <criterion/criterion.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/tools/program.h"
#include "tools/replay/npy.h"
#include "tools/replay/tensor_files.h"

namespace kvevict::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kHeads = 2, kTokens = 48, kDim = 8, kRows = 6;

struct Folder {
  fs::path path = fs::temp_directory_path() /
                  ("kvevict_replay_program_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path / "in"); }
  ~Folder() { fs::remove_all(path); }
  std::string in() const { return (path / "in").string(); }
  std::string at(const char* name) const { return (path / name).string(); }
};

// Two layers of keys, values and queries.
void WriteDump(const Folder& folder) {
  std::mt19937 random(7);
  for (const auto& [name, n_rows] :
       {std::pair{"k", kTokens}, {"v", kTokens}, {"q", kRows}}) {
    const std::vector<uint64_t> shape = {2, kHeads, n_rows, kDim};
    std::string data;
    for (size_t i = 0; i < 2 * kHeads * n_rows * kDim; ++i) {
      const float x = static_cast<float>(random() % 201) / 100.0f - 1.0f;
      data += std::string(reinterpret_cast<const char*>(&x), sizeof(x));
    }
    std::ofstream(folder.in() + "/" + name + ".npy", std::ios::binary)
        << NpyHeader("<f4", shape) << data;
  }
}

// The rows of written tensors are the dump's at the written positions, and
// those of the JSON.
void ExpectKept(const std::string& in, const std::string& out,
                const json& result) {
  const TensorFiles dump(std::vector<std::string>{in});
  const TensorFiles kept(std::vector<std::string>{out});
  for (size_t l = 0; l < 2; ++l) {
    const std::string layer = "." + std::to_string(l);
    const Tensor* positions = kept.Find("positions" + layer);
    cr_assert(positions != nullptr);
    const size_t n_slots = positions->shape[1];
    cr_assert(positions->shape == std::vector<uint64_t>({kHeads, n_slots}));
    for (const char* name : {"k", "v"}) {
      const Tensor* rows = kept.Find(name + layer);
      const Tensor* all = dump.Find(name);
      cr_assert(rows != nullptr && all != nullptr);
      cr_assert(rows->shape == std::vector<uint64_t>({kHeads, n_slots, kDim}));
      for (size_t h = 0; h < kHeads; ++h) {
        const json& expected = result["layers"][l]["heads"][h]["positions"];
        for (size_t t = 0; t < n_slots; ++t) {
          int32_t position;
          std::memcpy(&position,
                      positions->bytes.data() + (h * n_slots + t) * 4, 4);
          constexpr size_t kRowBytes = kDim * sizeof(float);
          const uint8_t* row =
              rows->bytes.data() + (h * n_slots + t) * kRowBytes;
          const std::vector<uint8_t> zeros(kRowBytes);
          const uint8_t* wanted = zeros.data();
          if (t < expected.size()) {
            cr_assert(position == expected[t].get<int32_t>());
            wanted = all->bytes.data() + ((l * kHeads + h) * kTokens +
                                          static_cast<size_t>(position)) *
                                             kRowBytes;
          } else {
            cr_assert(position == -1);
          }
          cr_expect(std::memcmp(row, wanted, kRowBytes) == 0);
        }
      }
    }
  }
}

Test(replay_program, what_stays_is_written_in_both_formats) {
  const Folder folder;
  WriteDump(folder);
  for (const char* policy :
       {"knorm:recent=4", "snapkv:window=4,sink=0,heads=adaptive"}) {
    for (const char* name : {"out.safetensors", "folder"}) {
      const json document =
          JsonOf("replay " + folder.in() + " --policy " + policy +
                 " --budget 12 --json --out " + folder.at(name));
      cr_assert(document["results"].size() == 1);
      const json& result = document["results"][0];
      cr_expect(result["tokens"] == 12.0);
      cr_expect(result["bytes_after"].get<uint64_t>() * 4 ==
                result["bytes_before"].get<uint64_t>());
      ExpectKept(folder.in(), folder.at(name), result);
      fs::remove_all(folder.at(name));
    }
  }
}

Test(replay_program, pictures_are_drawn) {
  const Folder folder;
  WriteDump(folder);
  const std::string pictures = folder.at("pictures");
  const Outcome run = Run("replay " + folder.in() +
                          " --policy knorm:recent=4 --policy "
                          "snapkv:window=4,sink=0,heads=adaptive --budget 12 "
                          "--pictures " +
                          pictures);
  if (std::system("gnuplot --version >/dev/null 2>&1") != 0) {
    cr_expect(run.status == 1 &&
              run.err.find("--pictures: gnuplot is not here") !=
                  std::string::npos);
    fprintf(stderr, "skipped: pictures, since gnuplot is not here\n");
    return;
  }
  cr_assert(run.status == 0, "%s", run.err.c_str());
  cr_expect(run.err.empty(), "%s", run.err.c_str());
  for (const char* name : {"kept-0", "kept-1", "bytes-0", "bytes-1"}) {
    for (const char* ending : {".svg", ".png"}) {
      const fs::path file = pictures + "/" + name + ending;
      cr_expect(fs::exists(file) && fs::file_size(file) > 1000, "%s",
                file.c_str());
    }
  }
}

Test(replay_program, a_table_has_every_policy_and_says_what_was_left_out) {
  const Folder folder;
  WriteDump(folder);
  const Outcome run = Run("replay " + folder.in() + " --budget 0.5");
  cr_assert(run.status == 0, "%s", run.err.c_str());
  for (const char* policy : {"h2o", "tova", "streaming-llm", "keydiff"}) {
    cr_expect(run.out.find("\n" + std::string(policy) + ":budget=0.5") !=
                  std::string::npos,
              "%s", run.out.c_str());
  }
  ExpectPart(run.out,
             "left out: policy snapkv:budget=0.5: it reads the "
             "queries of the last 32 tokens, but tensor 'q' has 6 "
             "rows");
}

Test(replay_program, mistakes_are_explained) {
  const Folder folder;
  WriteDump(folder);
  const struct {
    const char* arguments;
    int status;
    const char* message;
  } cases[] = {
      {"--queries 7", 2, "--queries 7: the dump has 6 query rows"},
      {"--out x.safetensors", 2,
       "--out takes one policy with one budget, but there are"},
      {"--v w", 1, "no tensor 'w' or 'w.0'; --v names another"},
      {"--policy snapkv", 2, "tensor 'q' has 6 rows"},
      {"--policy no-such", 2, "no-such"},
      {"no-such.npy", 1, "no-such.npy: there is no such file"},
      {"--budget 0", 2, "'0' is neither a number of tokens nor a ratio"},
      {"--axes tokens", 2, "'tokens' is not one of heads-tokens, "},
  };
  for (const auto& [arguments, status, message] : cases) {
    const Outcome run =
        Run("replay " + folder.in() + " " + std::string(arguments));
    cr_expect(run.status == status, "%s: %d", arguments, run.status);
    cr_expect(run.err.find(message) != std::string::npos,
              "%s: \"%s\" lacks \"%s\"", arguments, run.err.c_str(), message);
    cr_expect(run.out.empty());
  }
  cr_expect(Run("replay /no/such/folder").status == 1);
}

}  // namespace
}  // namespace kvevict::tools
