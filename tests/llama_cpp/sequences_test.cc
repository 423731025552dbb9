// Several sequences, other contexts, files, trims.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr char kPolicy[] = "snapkv:budget=48,window=16,scope=model";

// Sequences take turns in each batch, and are evicted while others stay. Each goes
// on as if llama.cpp itself had removed its tokens.
Test(llama_sequences, interleaved_ones_are_evicted_by_themselves) {
  const RandomModel shape;
  const ModelHandle model = LoadRandomModel(shape);
  for (const bool unified : {false, true}) {
    for (const bool flash : {false, true}) {
      SessionOptions options;
      options.n_seq = 3;
      options.unified = unified;
      options.flash = flash;
      Session evicted(model.get(), kPolicy, options);
      Session removed(model.get(), nullptr, options);
      const std::vector<std::vector<llama_token>> prompts = {
          RandomTokens(90, shape.n_vocab, 1),
          RandomTokens(70, shape.n_vocab, 2),
          RandomTokens(30, shape.n_vocab, 3)};
      evicted.DecodeTogether(prompts);
      removed.DecodeTogether(prompts);
      std::vector<std::vector<int32_t>> gone(3);
      uint32_t next = 90;
      for (int round = 0; round < 3; ++round) {
        for (llama_seq_id seq : {1, 0, 2}) {
          const auto before = evicted.Positions(0, 0, seq);
          const auto report = evicted.Evict(seq);
          cr_expect(report.evicted == (before.size() > 48));
          cr_expect(unified || report.evicted == 0 || report.in_place == 1);
          const auto after = evicted.Positions(0, 0, seq);
          size_t i = 0;
          for (const int32_t position : before) {
            if (i < after.size() && after[i] == position) {
              ++i;
            } else {
              llama_memory_seq_rm(removed.memory(), seq, position,
                                  position + 1);
            }
          }
        }
        const std::vector<std::vector<llama_token>> more = {
            RandomTokens(20, shape.n_vocab, 10 + round),
            RandomTokens(33, shape.n_vocab, 20 + round),
            RandomTokens(5, shape.n_vocab, 30 + round)};
        evicted.DecodeTogether(more);
        removed.DecodeTogether(more);
        for (llama_seq_id seq = 0; seq < 3; ++seq) {
          const auto one = RandomTokens(1, shape.n_vocab, 40 + seq);
          const double difference =
              MaxDifference(evicted.Decode(one, seq), removed.Decode(one, seq));
          cr_expect(difference < (flash ? 0.2 : 5e-4),
                    "unified %d flash %d seq %d: %g", unified, flash, seq,
                    difference);
        }
        next += 21;
      }
      uint32_t logical = 0;
      kvevict_sequence_logical_length(evicted.sequence(0), &logical);
      cr_expect(logical == next);
    }
  }
}

Test(llama_sequences, a_smaller_context_takes_what_stays) {
  for (const char* arch : {"llama", "gemma3", "deepseek2", "lfm2"}) {
    RandomModel shape;
    shape.arch = arch;
    shape.n_layers = 7;
    shape.n_embd = shape.n_heads * shape.head_dim;
    const ModelHandle model = LoadRandomModel(shape);
    SessionOptions options, small;
    small.n_ctx = 256;
    const auto prompt = RandomTokens(300, shape.n_vocab);
    const auto next = RandomTokens(40, shape.n_vocab, 2);
    Session large(model.get(), kPolicy, options);
    Session target(model.get(), kPolicy, small);
    large.Decode(prompt);
    const auto report = large.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target);
    cr_expect(report.evicted == 1 && report.in_place == 0 &&
              report.cells_after == 48);
    // The source is unchanged, and evicts the same tokens later.
    cr_expect(large.Positions().size() == 300);
    large.Evict();
    cr_expect(large.Positions() == target.Positions());
    cr_expect(large.Decode(next) == target.Decode(next), "%s", arch);
    cr_expect(large.Evict().evicted && target.Evict().evicted);
    cr_expect(large.Positions() == target.Positions());
    cr_expect(large.Decode(next) == target.Decode(next), "%s", arch);
  }
}

Test(llama_sequences, a_context_that_is_too_small_is_left_as_it_was) {
  const RandomModel shape;
  const ModelHandle model = LoadRandomModel(shape);
  SessionOptions options, small;
  small.n_ctx = 256;
  Session large(model.get(), "streaming-llm:budget=400", options);
  Session target(model.get(), "streaming-llm:budget=400", small);
  large.Decode(RandomTokens(600, shape.n_vocab));
  target.Decode(RandomTokens(5, shape.n_vocab));
  ExpectPart(large.EvictRefused(KVEVICT_LLAMA_WAY_AUTO, 0, &target),
             "256 cells < 400");
  cr_expect(target.Positions().size() == 5);
  cr_expect(large.Positions().size() == 600);
}

// LongRoPE chooses its factors by the length of the context.
Test(llama_sequences, a_target_turns_keys_as_the_source_does) {
  RandomModel shape;
  shape.long_rope = 600;
  const ModelHandle model = LoadRandomModel(shape);
  const auto prompt = RandomTokens(300, shape.n_vocab);
  const auto next = RandomTokens(20, shape.n_vocab, 2);
  SessionOptions longer, shorter, small;
  shorter.n_ctx = 512;
  small.n_ctx = 256;
  Session from(model.get(), kPolicy, longer);
  Session target(model.get(), kPolicy, shorter);
  from.Decode(prompt);
  ExpectPart(from.EvictRefused(KVEVICT_LLAMA_WAY_AUTO, 0, &target),
             "LongRoPE's short factors");
  cr_expect(from.Positions().size() == 300);
  Session within(model.get(), kPolicy, shorter);
  Session smaller(model.get(), kPolicy, small);
  within.Decode(prompt);
  cr_expect(within.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &smaller).cells_after ==
            48);
  within.Evict();
  cr_expect(within.Decode(next) == smaller.Decode(next));
  // A file gives the same.
  char path[] = "/tmp/kvevict-session-XXXXXX";
  close(mkstemp(path));
  Check(kvevict_llama_save(within.kv(), 0, path, nullptr, 0));
  cr_expect(kvevict_llama_load(from.kv(), 0, path, nullptr, 0, nullptr) ==
            KVEVICT_ERROR_UNSUPPORTED);
  unlink(path);
}

Test(llama_sequences, sessions_come_back_from_files) {
  for (const char* arch : {"llama", "gemma3", "lfm2", "gpt-oss"}) {
    RandomModel shape;
    shape.arch = arch;
    shape.n_layers = 7;
    shape.n_embd = shape.n_heads * shape.head_dim;
    const ModelHandle model = LoadRandomModel(shape);
    SessionOptions options;
    const auto prompt = RandomTokens(200, shape.n_vocab);
    const auto next = RandomTokens(40, shape.n_vocab, 2);
    char path[] = "/tmp/kvevict-session-XXXXXX";
    close(mkstemp(path));
    Session first(model.get(), "snapkv:budget=48,window=16", options);
    first.Decode(prompt);
    first.Evict();
    Check(
        kvevict_llama_save(first.kv(), 0, path, prompt.data(), prompt.size()));
    // One context has not decoded anything, and one has.
    for (const bool used : {false, true}) {
      Session second(model.get(), "snapkv:budget=48,window=16", options);
      if (used) second.Decode(next);
      std::vector<llama_token> tokens(prompt.size());
      size_t n = 0;
      cr_assert(kvevict_llama_load(second.kv(), 0, path, tokens.data(),
                                   tokens.size(), &n) == KVEVICT_OK,
                "%s", kvevict_llama_last_error_message());
      cr_expect(n == prompt.size() && tokens == prompt);
      for (uint32_t h = 0; h < 2; ++h) {
        cr_expect(second.Positions(0, h) == first.Positions(0, h));
      }
      if (used) {
        cr_expect(first.Decode(next) == second.Decode(next), "%s", arch);
        cr_expect(first.Evict().cells_after == second.Evict().cells_after);
        cr_expect(first.Positions() == second.Positions());
      }
    }
    // Damage to any byte is found.
    std::ifstream in(path, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), {});
    Session third(model.get(), "snapkv:budget=48,window=16", options);
    for (const size_t at : {size_t{0}, size_t{8}, size_t{16}, size_t{60},
                            size_t{90}, whole.size() / 2, whole.size() - 1}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      std::ofstream(path, std::ios::binary) << damaged;
      cr_expect(kvevict_llama_load(third.kv(), 0, path, nullptr, 0, nullptr) ==
                    KVEVICT_ERROR_INVALID_ARGUMENT,
                "byte %zu", at);
    }
    std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() / 3);
    cr_expect(kvevict_llama_load(third.kv(), 0, path, nullptr, 0, nullptr) ==
              KVEVICT_ERROR_INVALID_ARGUMENT);
    unlink(path);
    cr_expect(kvevict_llama_load(third.kv(), 0, path, nullptr, 0, nullptr) ==
              KVEVICT_ERROR_UNAVAILABLE);
  }
}

// A save replaces files, not links or devices.
Test(llama_sequences, links_and_devices_stay) {
  namespace fs = std::filesystem;
  const ModelHandle model = LoadRandomModel(RandomModel());
  Session session(model.get(), kPolicy, SessionOptions());
  session.Decode(RandomTokens(9, 256));  // so few fit into a pipe
  const auto save = [&](const fs::path& path) {
    return kvevict_llama_save(session.kv(), 0, path.c_str(), nullptr, 0);
  };
  char name[] = "/tmp/kvevict-session-XXXXXX";
  const fs::path folder = mkdtemp(name);
  fs::create_directory(folder / "other");
  fs::create_symlink("other/file", folder / "relative");
  fs::create_symlink(folder / "relative", folder / "absolute");
  // The first time the links lead to nothing yet.
  for (int i = 0; i < 2; ++i) {
    cr_expect(save(folder / "absolute") == KVEVICT_OK, "%s",
              kvevict_llama_last_error_message());
    cr_expect(fs::is_symlink(folder / "absolute"));
    cr_expect(fs::is_symlink(folder / "relative"));
    Check(kvevict_llama_load(session.kv(), 0, (folder / "other/file").c_str(),
                             nullptr, 0, nullptr));
  }
  cr_expect(std::distance(fs::directory_iterator(folder / "other"), {}) == 1);
  fs::create_symlink("round", folder / "round");
  cr_expect(save(folder / "round") == KVEVICT_ERROR_UNAVAILABLE);
  cr_expect(save(folder) == KVEVICT_ERROR_UNAVAILABLE);
  // Devices and pipes are written to, and a full device is an error.
  const fs::path pipe = folder / "pipe";
  cr_assert(mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  cr_expect(save(pipe) == KVEVICT_OK, "%s", kvevict_llama_last_error_message());
  char magic[8] = "";
  cr_expect(read(reader, magic, 8) == 8 && std::string(magic, 3) == "KVE");
  close(reader);
  cr_expect(fs::is_fifo(pipe));
  fs::create_symlink("/dev/full", folder / "full");
  cr_expect(save(folder / "full") == KVEVICT_ERROR_UNAVAILABLE);
  ExpectPart(kvevict_llama_last_error_message(), "No space left");
  cr_expect(fs::is_symlink(folder / "full"));
  fs::remove_all(folder);
}

Test(llama_sequences, trims_are_exact_or_refused) {
  const RandomModel shape;
  const ModelHandle model = LoadRandomModel(shape);
  SessionOptions options;
  const auto prompt = RandomTokens(120, shape.n_vocab);
  const auto next = RandomTokens(30, shape.n_vocab, 2);
  Session a(model.get(), "snapkv:budget=48,window=16", options);
  Session b(model.get(), "snapkv:budget=48,window=16", options);
  a.Decode(prompt);
  b.Decode(prompt);
  a.Evict();
  b.Evict();
  // Speculation is taken back by the adapter or by the application itself.
  const auto rejected = RandomTokens(9, shape.n_vocab, 3);
  a.Decode(rejected);
  Check(kvevict_llama_trim_to(a.kv(), 0, 122));
  Check(kvevict_llama_trim_to(a.kv(), 0, 120));
  cr_expect(a.Decode(next) == b.Decode(next));
  a.Decode(rejected);
  llama_memory_seq_rm(a.memory(), 0, 150, -1);
  cr_expect(a.Decode(next) == b.Decode(next));
  cr_expect(a.Evict().cells_after == b.Evict().cells_after);
  cr_expect(a.Positions() == b.Positions());
  // Lengths between evicted tokens do not come back.
  cr_expect(kvevict_llama_trim_to(a.kv(), 0, 100) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_expect(kvevict_llama_trim_to(a.kv(), 0, 1000) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_expect(a.Positions().size() == 48);
  // The sinks are a prefix that has not changed.
  Check(kvevict_llama_trim_to(a.kv(), 0, 4));
  cr_expect(a.Positions().size() == 4);
  Session fresh(model.get(), nullptr, options);
  const auto expected = fresh.Decode(prompt);
  const auto rest = a.Decode(std::span(prompt).subspan(4));
  cr_expect(MaxDifference(rest, std::span(expected).subspan(
                                    4 * size_t{shape.n_vocab})) < 5e-4);
  // After everything is removed it starts anew.
  llama_memory_seq_rm(a.memory(), 0, -1, -1);
  cr_expect(a.Decode(prompt) == expected);
  cr_expect(a.Evict().in_place == 1);
}

}  // namespace
}  // namespace kvevict::tests
