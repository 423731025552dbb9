// A target that cannot take a state is refused before it is touched: cache types,
// flash attention, streams, room in both caches, keep lists.
#include <criterion/criterion.h>

#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr char kPolicy[] = "snapkv:budget=60,window=8";

// The words of a refusal, before which nothing is lost.
std::string Refusal(Session& from, Session& target) {
  const std::string why = from.EvictRefused(KVEVICT_LLAMA_WAY_AUTO, 0, &target);
  cr_expect(why.find("lost") == std::string::npos, "%s", why.c_str());
  return why;
}

// A session of 200 tokens, or an eviction of one, is refused by contexts with other
// options.
Test(llama_targets, other_caches_are_refused_before_a_change) {
  const ModelHandle model = LoadRandomModel(RandomModel());
  const auto prompt = RandomTokens(200, 256), own = RandomTokens(100, 256, 2),
             next = RandomTokens(20, 256, 3);
  SessionOptions f32, f16, flash, mixed, two;
  two.n_seq = 2;
  f16.type_k = f16.type_v = GGML_TYPE_F16;
  flash.flash = mixed.flash = true;
  mixed.type_v = GGML_TYPE_F16;
  struct Other {
    const SessionOptions& from;
    const SessionOptions& target;
    const char* why;
    bool counts_streams = false;
  };
  for (const Other& other :
       {Other{f32, f16, "K of f32, the context's is f16"},
        Other{f32, flash, "V of a context without flash attention"},
        Other{flash, f32, "V of a context with flash attention"},
        Other{flash, mixed, "V of f32, the context's is f16"},
        Other{f32, two, "cache has 2 streams, the state's 1", true},
        Other{two, f32, "cache has 1 stream, the state's 2", true}}) {
    Session from(model.get(), kPolicy, other.from);
    from.Decode(prompt);
    auto saved = from.Save();
    size_t n = 0;
    cr_expect(kvevict_llama_save_data(from.kv(), 0, nullptr, 0, saved.data(),
                                      saved.size() - 1,
                                      &n) == KVEVICT_ERROR_INVALID_ARGUMENT);
    // It has decoded and never evicted, so it has no plan.
    Session target(model.get(), kPolicy, other.target);
    Session plain(model.get(), nullptr, other.target);
    target.Decode(own);
    plain.Decode(own);
    ExpectPart(Refusal(from, target), other.why);
    ExpectStatus(other.counts_streams ? KVEVICT_ERROR_UNSUPPORTED
                                      : KVEVICT_ERROR_INVALID_ARGUMENT,
                 target.Load(saved), other.why);
    cr_expect(target.Decode(next) == plain.Decode(next));
    cr_expect(target.Positions().size() == 120);
    // Only streams are known of a context that has decoded nothing, and it loses nothing.
    Session fresh(model.get(), kPolicy, other.target);
    ExpectPart(Refusal(from, fresh),
               other.counts_streams ? other.why : "did not take the state");
    fresh.Decode(own);
    cr_expect(fresh.Positions().size() == 100);
    cr_expect(fresh.Evict().cells_after == 60);
  }
}

// The window's cache must also have room for batches.
Test(llama_targets, windows_need_room_of_their_own) {
  RandomModel shape;
  shape.arch = "gemma3";
  shape.n_layers = 7;
  shape.window = 200;
  const ModelHandle model = LoadRandomModel(shape);
  const auto prompt = RandomTokens(600, 256), next = RandomTokens(40, 256, 2);
  SessionOptions large, small;
  large.n_ubatch = small.n_ubatch = 128;
  small.n_ctx = 256;
  Session from(model.get(), kPolicy, large);
  from.Decode(prompt);
  for (const bool used : {false, true}) {
    Session target(model.get(), kPolicy, small);
    if (used) target.Decode(next);
    ExpectPart(Refusal(from, target),
               "room for 256 cells of a sequence < 328 that layers with a "
               "sliding window of 200 need to take batches of n_ubatch 128; "
               "n_ctx has to be 328 or more");
    if (used) cr_expect(target.Positions().size() == 40);
  }
  small.n_ctx = 328;
  Session target(model.get(), kPolicy, small);
  cr_expect(from.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target).cells_after == 60);
  from.Evict();
  cr_expect(from.Decode(next) == target.Decode(next));
}

// Other sequences of a unified cache keep their cells.
Test(llama_targets, other_sequences_leave_less_room) {
  const ModelHandle model = LoadRandomModel(RandomModel());
  SessionOptions one, two;
  two.n_seq = 2;
  two.unified = true;
  two.n_ctx = 256;
  Session from(model.get(), kPolicy, one);
  from.Decode(RandomTokens(200, 256));
  Session target(model.get(), kPolicy, two);
  target.Decode(RandomTokens(5, 256));
  target.Decode(RandomTokens(210, 256), 1);
  ExpectPart(Refusal(from, target), "n_ctx has to be 270 or more");
  cr_expect(target.Positions().size() == 5);
  target.Evict(1);
  cr_expect(from.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target).cells_after == 60);
}

// A target takes lists of another scope if its cells can hold them.
Test(llama_targets, lists_of_another_scope_are_taken_or_refused) {
  const ModelHandle model = LoadRandomModel(RandomModel());
  const auto prompt = RandomTokens(200, 256), next = RandomTokens(20, 256, 2);
  Session layers(model.get(), "snapkv:budget=60,window=8,scope=layer", {});
  Session heads(model.get(), "knorm:budget=60", {});
  layers.Decode(prompt);
  heads.Decode(prompt);
  for (const char* policy :
       {"none", "keydiff:budget=80", "streaming-llm:budget=60"}) {
    Session target(model.get(), policy, {});
    cr_expect(layers.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target).cells_after ==
              60);
    Session evicted(model.get(), "snapkv:budget=60,window=8,scope=layer", {});
    evicted.Decode(prompt);
    evicted.Evict();
    cr_expect(target.Positions(2, 1) == evicted.Positions(2, 1), "%s", policy);
    cr_expect(target.Decode(next) == evicted.Decode(next), "%s", policy);
  }
  for (const bool used : {false, true}) {
    Session target(model.get(), "none", {});
    if (used) target.Decode(next);
    const auto refusal = Refusal(heads, target);
    ExpectPart(refusal, "scope");
    if (used) cr_expect(target.Positions().size() == 20);
    cr_expect(heads.Positions().size() == 200);
  }
}

Test(llama_targets, options_without_a_meaning_are_refused) {
  const ModelHandle model = LoadRandomModel(RandomModel());
  Session session(model.get(), kPolicy, SessionOptions());
  session.Decode(RandomTokens(200, 256));
  const auto refusal = [&](const kvevict_llama_evict_options& options) {
    cr_expect(kvevict_llama_evict(session.kv(), 0, &options, nullptr) ==
              KVEVICT_ERROR_INVALID_ARGUMENT);
    return std::string(kvevict_llama_last_error_message());
  };
  kvevict_llama_evict_options options = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  options.target_seq = 1;
  ExpectPart(refusal(options), "options.target_seq 1 != 0 without");
  options.target_seq = 0;
  options.reserved = 7;
  ExpectPart(refusal(options), "options.reserved 7 != 0");
  cr_expect(session.Positions().size() == 200);
}

}  // namespace
}  // namespace kvevict::tests
