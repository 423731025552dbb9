// Tokens taken back by the adapter or by others, and states that others set: the
// sequence goes on exactly, or is refused with the remedy.
#include <criterion/criterion.h>

#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr char kPolicy[] = "snapkv:budget=60,window=8";

void ExpectTrimRefused(Session& session, uint32_t n_tokens, const char* part) {
  ExpectUnsupported(kvevict_llama_trim_to(session.kv(), 0, n_tokens), part);
}

std::vector<uint8_t> StateOf(Session& session) {
  std::vector<uint8_t> state(llama_state_seq_get_size(session.ctx(), 0));
  llama_state_seq_get_data(session.ctx(), state.data(), state.size(), 0);
  return state;
}

// A window of 32 in 256 cells forgets tokens from 287 on.
Test(llama_removals, a_trim_needs_what_windows_have_forgotten) {
  const ModelHandle model = LoadRandomModel("gemma3");
  const auto tokens = RandomTokens(900, 256), next = RandomTokens(20, 256, 2);
  const auto prefix = [&](uint32_t n) { return std::span(tokens).first(n); };
  for (const bool full : {false, true}) {
    SessionOptions options;
    options.swa_full = full;
    // This one is never evicted.
    Session plain(model.get(), kPolicy, options);
    plain.Decode(tokens);
    if (!full) ExpectTrimRefused(plain, 500, "sliding window of 32");
    cr_expect(plain.Positions().size() == 900);
    const uint32_t length = full ? 500 : 890;
    Check(kvevict_llama_trim_to(plain.kv(), 0, length));
    Session shorter(model.get(), nullptr, options);
    shorter.Decode(prefix(length));
    cr_expect(MaxDifference(plain.Decode(next), shorter.Decode(next)) < 5e-4);
    // This one is evicted: a state only holds the last window, whatever swa_full had kept.
    Session evicted(model.get(), kPolicy, options);
    evicted.Decode(tokens);
    evicted.Evict();
    cr_expect(llama_memory_seq_pos_min(evicted.memory(), 0) == 900 - 32);
    ExpectTrimRefused(evicted, 4, "hold tokens from position 868 on");
    cr_expect(evicted.Positions().size() == 60);
    evicted.Decode(prefix(400));
    if (full) {
      Check(kvevict_llama_trim_to(evicted.kv(), 0, 900));
      Check(kvevict_llama_trim_to(evicted.kv(), 0, 0));
    } else {
      ExpectTrimRefused(evicted, 900, "trim to 0 and decode it anew");
      Check(kvevict_llama_trim_to(evicted.kv(), 0, 0));
    }
    cr_expect(evicted.Decode(prefix(50)).size() == 50 * 256);
    cr_expect(evicted.Positions().size() == 50);
    // The adapter notices llama.cpp's own call, though nobody tells it.
    evicted.Decode(tokens);
    llama_memory_seq_rm(evicted.memory(), 0, full ? 0 : 500, -1);
    if (full) continue;
    ExpectPart(evicted.EvictRefused(), "sliding window had lost tokens");
    llama_memory_seq_rm(evicted.memory(), 0, 500, -1);
    llama_memory_seq_rm(evicted.memory(), 0, -1, -1);
    evicted.Decode(tokens);
    cr_expect(evicted.Evict().cells_after == 60);
  }
}

// Regenerates from before an eviction, when heads have kept different tokens.
// Attaching again forgets what was known of the cache.
Test(llama_removals, a_context_may_be_attached_again) {
  for (const char* arch : {"llama", "gemma3"}) {
    const ModelHandle model = LoadRandomModel(arch);
    Session session(model.get(), kPolicy, SessionOptions());
    session.Decode(RandomTokens(100, 256));
    session.Evict();
    llama_memory_clear(session.memory(), true);
    Check(kvevict_llama_attach(session.kv(), session.ctx()));
    session.Decode(RandomTokens(90, 256, 2));
    cr_expect(session.Evict().cells_after == 60, "%s", arch);
  }
}

Test(llama_removals, a_tail_from_before_the_eviction_is_noticed) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(20, 256, 2);
  for (const bool decoded : {false, true}) {
    Session session(model.get(), kPolicy, SessionOptions());
    session.Decode(prompt);
    const auto before = session.Save();
    uint32_t evicted_at = 1;
    cr_expect(kvevict_llama_evicted_at(session.kv(), 0, &evicted_at) ==
                  KVEVICT_OK &&
              evicted_at == 0);
    session.Evict();
    session.Decode(next);
    cr_expect(kvevict_llama_evicted_at(session.kv(), 0, &evicted_at) ==
                  KVEVICT_OK &&
              evicted_at == prompt.size());
    llama_memory_seq_rm(session.memory(), 0, 150, -1);
    if (decoded) session.Decode(next);
    const auto refused = session.EvictRefused();
    ExpectPart(refused, "from before its last eviction");
    ExpectPart(refused, "remove all of it and decode it anew, or load");
    const kvevict_sequence* sequence = nullptr;
    cr_expect(kvevict_llama_sequence(session.kv(), 0, &sequence) ==
              KVEVICT_ERROR_UNSUPPORTED);
    // The remedy: a state from before the eviction, and the edited tail.
    Check(session.Load(before));
    Check(kvevict_llama_trim_to(session.kv(), 0, 150));
    Session plain(model.get(), nullptr, SessionOptions());
    plain.Decode(std::span(prompt).first(150));
    cr_expect(MaxDifference(session.Decode(next), plain.Decode(next)) < 5e-4);
    cr_expect(session.Evict().cells_after == 60);
  }
}

// The other conversation ends at the same position.
Test(llama_removals, a_foreign_state_of_the_same_length_is_noticed) {
  for (const char* arch : {"llama", "gemma3", "deepseek2"}) {
    const ModelHandle model = LoadRandomModel(arch);
    for (const char* policy : {kPolicy, "keydiff:budget=60"}) {
      for (const int when : {0, 1, 2}) {
        Session other(model.get(), nullptr, SessionOptions());
        auto tokens = RandomTokens(200, 256, 3);
        other.Decode(tokens);
        tokens = RandomTokens(199, 256, 4);
        tokens.push_back(RandomTokens(200, 256, 3).back());
        Session session(model.get(), policy, SessionOptions());
        session.Decode(tokens);
        if (when == 1) session.Evict();
        const auto foreign = StateOf(other);
        cr_assert(llama_state_seq_set_data(session.ctx(), foreign.data(),
                                           foreign.size(),
                                           0) == foreign.size());
        if (when == 2) session.Decode(RandomTokens(9, 256, 5));
        ExpectPart(session.EvictRefused(),
                   when == 1 ? "cells" : "a state was set");
        llama_memory_seq_rm(session.memory(), 0, -1, -1);
        session.Decode(tokens);
        cr_expect(session.Evict().cells_after == 60);
      }
    }
  }
  const ModelHandle model = LoadRandomModel("llama");
  Session session(model.get(), kPolicy, SessionOptions());
  session.Decode(RandomTokens(200, 256));
  cr_expect(kvevict_llama_invalidate(session.kv(), 1) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  Check(kvevict_llama_invalidate(session.kv(), 0));
  ExpectPart(session.EvictRefused(), "kvevict_llama_invalidate() was called");
  session.Decode(RandomTokens(1, 256));
  ExpectPart(session.EvictRefused(), "kvevict_llama_invalidate() was called");
  llama_memory_seq_rm(session.memory(), 0, -1, -1);
  session.Decode(RandomTokens(200, 256));
  cr_expect(session.Evict().cells_after == 60);
}

// Several policies use one prefill, and each adapter is told of a trim.
Test(llama_removals, adapters_of_one_context_are_trimmed_each) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(20, 256, 2);
  kvevict_llama* second = nullptr;
  cr_assert(kvevict_llama_create("knorm:budget=60", nullptr, &second) ==
            KVEVICT_OK);
  SessionOptions options;
  options.callback = &kvevict_llama_eval;  // chained to the adapter's
  options.callback_data = second;
  {
    Session session(model.get(), kPolicy, options);
    Check(kvevict_llama_attach(second, session.ctx()));
    session.Decode(prompt);
    for (int round = 0; round < 2; ++round) {
      session.Decode(next);
      for (kvevict_llama* kv : {session.kv(), second}) {
        Check(kvevict_llama_trim_to(kv, 0, 200));
      }
      for (kvevict_llama* kv : {session.kv(), second}) {
        const kvevict_sequence* sequence = nullptr;
        uint32_t length = 0;
        cr_assert(kvevict_llama_sequence(kv, 0, &sequence) == KVEVICT_OK);
        kvevict_sequence_logical_length(sequence, &length);
        cr_expect(length == 200);
      }
    }
    cr_expect(kvevict_llama_trim_to(second, 0, 210) ==
              KVEVICT_ERROR_INVALID_ARGUMENT);
    // What the application itself removed is told in the same way.
    session.Decode(next);
    llama_memory_seq_rm(session.memory(), 0, 210, -1);
    ExpectInvalid(kvevict_llama_trim_to(session.kv(), 0, 215),
                  "positions reach 210");
    Check(kvevict_llama_trim_to(session.kv(), 0, 210));
    cr_expect(session.Evict().cells_after == 60);
  }
  kvevict_llama_destroy(second);
}

SessionOptions Several(uint32_t n_seq, bool unified) {
  SessionOptions options;
  options.n_seq = n_seq;
  options.unified = unified;
  return options;
}

// The adapter's knowledge does not match llama.cpp, so nothing is read, copied or taken
// back.
void ExpectAllRefused(kvevict_llama* kv, uint32_t length, const char* part) {
  const kvevict_sequence* sequence = nullptr;
  size_t n_bytes = 0;
  const auto expect = [&](kvevict_status status, const char* call) {
    cr_expect(status == KVEVICT_ERROR_UNSUPPORTED, "%s: %d", call, status);
    ExpectPart(kvevict_llama_last_error_message(), part);
  };
  expect(kvevict_llama_sequence(kv, 0, &sequence), "sequence");
  expect(kvevict_llama_save_data(kv, 0, nullptr, 0, nullptr, 0, &n_bytes),
         "save_data");
  expect(kvevict_llama_copy(kv, 0, 1), "copy");
  expect(kvevict_llama_trim_to(kv, 0, length), "trim_to");
  expect(kvevict_llama_trim_to(kv, 0, length - 1), "trim_to less");
  expect(kvevict_llama_end_prompt(kv, 0), "end_prompt");
  expect(kvevict_llama_evict(kv, 0, nullptr, nullptr), "evict");
}

// Positions reach as far as before, but other tokens are there.
Test(llama_removals, a_shift_is_no_tail_that_went) {
  for (const char* arch : {"llama", "gemma3"}) {
    const ModelHandle model = LoadRandomModel(arch);
    for (const bool unified : {false, true}) {
      for (const bool evicted : {false, true}) {
        for (const bool shifts : {false, true}) {
          Session session(model.get(), kPolicy, Several(2, unified));
          session.Decode(RandomTokens(30, 256, 7), 1);
          session.Decode(RandomTokens(200, 256));
          if (evicted) {
            session.Evict();
            session.Decode(RandomTokens(40, 256, 2));
          }
          const int32_t n = evicted ? 240 : 200;
          if (shifts) {
            llama_memory_seq_rm(session.memory(), 0, n - 30, n - 20);
            llama_memory_seq_add(session.memory(), 0, n - 20, -1, -10);
            // A rejected draft follows if cells are known to be in order.
            if (!unified && std::string(arch) == "llama") {
              llama_memory_seq_rm(session.memory(), 0, n - 15, -1);
            }
          } else {
            llama_memory_seq_rm(session.memory(), 0, n - 10, -1);
          }
          const auto next = static_cast<uint32_t>(
              llama_memory_seq_pos_max(session.memory(), 0) + 1);
          const auto trim = [&] {
            return kvevict_llama_trim_to(session.kv(), 0, next);
          };
          if (!shifts) {
            cr_expect(trim() == KVEVICT_OK, "%s %d %d: %s", arch, unified,
                      evicted, kvevict_llama_last_error_message());
            cr_expect(session.Positions().back() == n - 11);
            continue;
          }
          cr_expect(trim() == KVEVICT_ERROR_UNSUPPORTED, "%s %d %d", arch,
                    unified, evicted);
          ExpectPart(kvevict_llama_last_error_message(), "shifted");
          ExpectPart(kvevict_llama_last_error_message(), "decode it anew");
          // Nothing was changed: llama.cpp goes on with the shifted sequence.
          session.Decode(RandomTokens(1, 256, 3));
          ExpectPart(session.EvictRefused(), "shifted");
        }
      }
    }
  }
}

// The sessions have equally many cells at the same positions. One that was evicted in
// place lies where its last key is known to be, in a cache that others may use too.
Test(llama_removals, a_foreign_state_over_an_evicted_one_is_noticed) {
  constexpr char kRecent[] = "streaming-llm:budget=60";
  enum How { kLoaded, kByState, kInPlace };
  for (const char* arch : {"llama", "gemma3"}) {
    const ModelHandle model = LoadRandomModel(arch);
    for (const bool unified : {false, true}) {
      const SessionOptions options = Several(2, unified);
      Session own(model.get(), kRecent, options);
      Session other(model.get(), kRecent, options);
      own.Decode(RandomTokens(200, 256, 4));
      other.Decode(RandomTokens(200, 256, 3));
      own.Evict();
      other.Evict();
      const auto saved = own.Save(), foreign = StateOf(other);
      for (const How how : {kLoaded, kByState, kInPlace}) {
        if (how == kInPlace && std::string(arch) != "llama") continue;
        for (const bool decodes : {false, true}) {
          Session session(model.get(), kRecent, options);
          const auto others = RandomTokens(30, 256, 7);
          if (how == kLoaded) {
            Check(session.Load(saved));
          } else {
            if (how == kByState) session.Decode(others, 1);
            session.Decode(RandomTokens(200, 256, 4));
            const auto report =
                session.Evict(0, how == kByState ? KVEVICT_LLAMA_WAY_STATE
                                                 : KVEVICT_LLAMA_WAY_IN_PLACE);
            cr_expect(report.in_place == (how == kInPlace));
            if (how == kInPlace) session.Decode(others, 1);
          }
          cr_expect(session.Positions().size() == 60);
          cr_assert(llama_state_seq_set_data(session.ctx(), foreign.data(),
                                             foreign.size(),
                                             0) == foreign.size());
          if (decodes) session.Decode(RandomTokens(9, 256, 5));
          ExpectAllRefused(session.kv(), 200, "a state was set");
        }
      }
    }
  }
}

// The other adapters do not know what one adapter has evicted.
Test(llama_removals, another_adapters_eviction_is_noticed) {
  for (const char* arch : {"llama", "gemma3", "lfm2"}) {
    const ModelHandle model = LoadRandomModel(SevenLayers(arch));
    for (const bool decodes : {false, true}) {
      kvevict_llama* second = nullptr;
      cr_assert(kvevict_llama_create("knorm:budget=60", nullptr, &second) ==
                KVEVICT_OK);
      SessionOptions options = Several(2, false);
      options.callback = &kvevict_llama_eval;
      options.callback_data = second;
      {
        Session session(model.get(), kPolicy, options);
        Check(kvevict_llama_attach(second, session.ctx()));
        session.Decode(RandomTokens(200, 256));
        cr_expect(session.Evict().cells_after == 60);
        if (decodes) session.Decode(RandomTokens(9, 256, 2));
        ExpectAllRefused(second, decodes ? 209 : 200,
                         "another adapter has evicted it");
        cr_expect(session.Positions().size() == (decodes ? 69 : 60));
      }
      kvevict_llama_destroy(second);
    }
  }
}

}  // namespace
}  // namespace kvevict::tests
