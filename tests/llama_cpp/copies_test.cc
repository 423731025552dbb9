// Evicting a sequence leaves its copies their rows.
#include <criterion/criterion.h>

#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr char kPolicy[] = "snapkv:budget=48,window=16,scope=model";

SessionOptions Three(bool unified) {
  SessionOptions options;
  options.n_seq = 3;
  options.unified = unified;
  return options;
}

void ExpectRefused(Session& session, llama_seq_id seq, const char* part,
                   kvevict_llama_way way = KVEVICT_LLAMA_WAY_AUTO) {
  ExpectPart(session.EvictRefused(way, seq), part);
}

// Three sequences share a prompt, as in a server: each is evicted while the others
// go on with all of it.
Test(llama_copies, a_shared_prefix_stays_whole_for_others) {
  for (const char* arch : {"llama", "gemma3"}) {
    const ModelHandle model = LoadRandomModel(arch);
    const auto prompt = RandomTokens(120, 256);
    for (const bool unified : {true, false}) {
      for (const bool by_adapter : {true, false}) {
        // The window of queries covers that of the sliding layers.
        Session evicted(model.get(), "snapkv:budget=64,window=40,scope=model",
                        Three(unified));
        Session removed(model.get(), nullptr, Three(unified));
        evicted.Decode(prompt);
        removed.Decode(prompt);
        for (llama_seq_id to : {1, 2}) {
          if (by_adapter) {
            Check(kvevict_llama_copy(evicted.kv(), 0, to));
            if (!unified) evicted.Decode(RandomTokens(1, 256, 90 + to), to);
          } else {
            llama_memory_seq_cp(evicted.memory(), 0, to, -1, -1);
            if (!unified) evicted.Decode(RandomTokens(1, 256, 90 + to), to);
          }
          llama_memory_seq_cp(removed.memory(), 0, to, -1, -1);
          if (!unified) removed.Decode(RandomTokens(1, 256, 90 + to), to);
        }
        const auto report = evicted.Evict(0);
        cr_expect(report.cells_after == 64);
        cr_expect(report.in_place ==
                  (!unified && std::string(arch) == "llama"));
        RemoveOthers(removed, evicted.Positions(), 120, 0);
        std::vector<llama_seq_id> order = {1, 0, 2};
        for (const llama_seq_id seq : order) {
          const auto next = RandomTokens(6, 256, 10 + seq);
          const double difference = MaxDifference(evicted.Decode(next, seq),
                                                  removed.Decode(next, seq));
          cr_expect(difference < 5e-4, "%s unified %d seq %d: %g", arch,
                    unified, seq, difference);
        }
        if (!by_adapter) {
          ExpectRefused(evicted, 1, "kvevict_llama_copy()");
          continue;
        }
        // Copies are evicted like other sequences.
        const int32_t n = unified ? 126 : 127;
        cr_expect(evicted.Evict(1).cells_after == 64);
        RemoveOthers(removed, evicted.Positions(0, 0, 1), n, 1);
        for (const llama_seq_id seq : order) {
          const auto next = RandomTokens(6, 256, 20 + seq);
          const double difference = MaxDifference(evicted.Decode(next, seq),
                                                  removed.Decode(next, seq));
          cr_expect(difference < 5e-4, "%s unified %d seq %d: %g", arch,
                    unified, seq, difference);
        }
      }
    }
  }
}

// The copy of an evicted sequence has what that has kept.
Test(llama_copies, evicted_ones_are_copied_too) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(60, 256, 2);
  for (const bool unified : {true, false}) {
    Session session(model.get(), "snapkv:budget=48,window=16", Three(unified));
    session.Decode(prompt);
    session.Evict();
    Check(kvevict_llama_copy(session.kv(), 0, 2));
    cr_expect(session.Positions(0, 1, 2) == session.Positions(0, 1, 0));
    const auto expected = session.Decode(next);
    cr_expect(MaxDifference(session.Decode(next, 2), expected) < 5e-4);
    session.Evict();
    session.Evict(2);
    cr_expect(session.Positions(1, 1, 2) == session.Positions(1, 1, 0));
  }
}

// If sequences have streams of their own, llama.cpp copies rows at the next
// llama_decode().
Test(llama_copies, rows_that_are_yet_to_be_copied_stay) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(20, 256, 2);
  for (const auto way : {KVEVICT_LLAMA_WAY_AUTO, KVEVICT_LLAMA_WAY_STATE}) {
    for (const bool by_adapter : {true, false}) {
      Session session(model.get(), kPolicy, Three(false));
      const auto expected = [&] {
        Session plain(model.get(), nullptr, Three(false));
        plain.Decode(prompt);
        return plain.Decode(next);
      }();
      session.Decode(prompt);
      if (by_adapter) {
        Check(kvevict_llama_copy(session.kv(), 0, 1));
      } else {
        llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
      }
      ExpectRefused(session, 0, "decode a token, of any sequence, first", way);
      ExpectRefused(session, 1,
                    by_adapter ? "decode a token, of any sequence, first"
                               : "not decoded here",
                    way);
      cr_expect(session.Positions().size() == 200);
      session.Decode(RandomTokens(1, 256, 3), 2);
      cr_expect(session.Evict(0, way).cells_after == 48);
      cr_expect(MaxDifference(session.Decode(next, 1), expected) < 5e-4);
    }
  }
}

// Several answers share a prompt, and their copies are made one after the other.
Test(llama_copies, several_copies_await_their_rows) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(20, 256, 2);
  const auto expected = [&] {
    Session alone(model.get(), kPolicy, Three(false));
    alone.Decode(prompt);
    alone.Decode(RandomTokens(1, 256, 3));
    alone.Evict();
    return alone.Decode(next);
  }();
  Session session(model.get(), kPolicy, Three(false));
  session.Decode(prompt);
  for (const llama_seq_id to : {1, 2}) {
    Check(kvevict_llama_copy(session.kv(), 0, to));
  }
  ExpectRefused(session, 0, "to copy rows of seq 0 to it");
  for (const llama_seq_id seq : {0, 1, 2}) {
    session.Decode(RandomTokens(1, 256, 3), seq);
    cr_expect(session.Evict(seq).cells_after == 48);
    cr_expect(MaxDifference(session.Decode(next, seq), expected) < 5e-4);
  }
}

// Shared cells stay for the other sequences, so an eviction needs cells of its own.
Test(llama_copies, an_eviction_that_has_no_room_is_refused) {
  const ModelHandle model = LoadRandomModel("llama");
  SessionOptions options = Three(true);
  options.n_ctx = 256;
  Session session(model.get(), kPolicy, options);
  session.Decode(RandomTokens(220, 256));
  Check(kvevict_llama_copy(session.kv(), 0, 1));
  ExpectRefused(session, 1, "need n_ctx 268 > 256");
  cr_expect(session.Positions(0, 0, 1).size() == 220);
  const auto next = RandomTokens(8, 256, 2);
  cr_expect(MaxDifference(session.Decode(next, 1), session.Decode(next)) <
            5e-4);
  // It has room when it is alone.
  Check(kvevict_llama_trim_to(session.kv(), 0, 0));
  cr_expect(session.Evict(1).cells_after == 48);
}

// llama.cpp copies rows to a stream even if their sequence has left it.
Test(llama_copies, a_removed_copy_takes_no_state_before_its_rows_came) {
  const ModelHandle model = LoadRandomModel("llama");
  const auto next = RandomTokens(20, 256, 2);
  Session session(model.get(), kPolicy, Three(false));
  session.Decode(RandomTokens(200, 256));
  Session other(model.get(), kPolicy, Three(false));
  other.Decode(RandomTokens(150, 256, 3));
  const auto expected = [&] {
    Session evicted(model.get(), kPolicy, Three(false));
    evicted.Decode(RandomTokens(150, 256, 3));
    evicted.Evict();
    return evicted.Decode(next);
  }();
  const auto saved = other.Save();
  const auto load = [&] { return session.Load(saved, 1); };
  kvevict_llama_evict_options options = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  options.target = session.kv();
  options.target_seq = 1;
  const auto receive = [&] {
    return kvevict_llama_evict(other.kv(), 0, &options, nullptr);
  };
  for (const bool trims : {false, true}) {
    Check(kvevict_llama_copy(session.kv(), 0, 1));
    if (trims) {
      Check(kvevict_llama_trim_to(session.kv(), 1, 0));
    } else {
      llama_memory_seq_rm(session.memory(), 1, -1, -1);
    }
    for (const auto status : {load(), receive()}) {
      cr_expect(status == KVEVICT_ERROR_INVALID_ARGUMENT);
      ExpectPart(kvevict_llama_last_error_message(),
                 "decode a token, of any sequence, first");
    }
    session.Decode(RandomTokens(1, 256, 4), 2);
    cr_assert(receive() == KVEVICT_OK, "%s",
              kvevict_llama_last_error_message());
    cr_expect(MaxDifference(session.Decode(next, 1), expected) < 5e-4);
    cr_assert(load() == KVEVICT_OK);
  }
}

Test(llama_copies, an_empty_sequence_is_no_source) {
  const ModelHandle model = LoadRandomModel("llama");
  for (const bool unified : {false, true}) {
    Session session(model.get(), kPolicy, Three(unified));
    session.Decode(RandomTokens(100, 256));
    cr_expect(kvevict_llama_copy(session.kv(), 1, 0) ==
              KVEVICT_ERROR_INVALID_ARGUMENT);
    ExpectPart(kvevict_llama_last_error_message(), "seq 1 has 0 tokens < 1");
    cr_expect(session.Positions().size() == 100);
  }
}

}  // namespace
}  // namespace kvevict::tests
