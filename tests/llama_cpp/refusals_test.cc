// Calls for what llama.cpp cannot hold or the adapter cannot know are refused with a
// reason.
#include <criterion/criterion.h>
#include <dlfcn.h>

#include <string>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"

namespace {

// The adapter sees a ggml of another version.
bool ops_are_others = false;
size_t more_overhead = 0;

}  // namespace

extern "C" [[gnu::visibility("default")]] const char* ggml_op_name(ggml_op op) {
  using Function = const char* (*)(ggml_op);
  static const auto real =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "ggml_op_name"));
  const int shift = ops_are_others && op >= GGML_OP_SET_ROWS ? 1 : 0;
  return real(static_cast<ggml_op>(op + shift));
}

extern "C" [[gnu::visibility("default")]] size_t ggml_tensor_overhead() {
  using Function = size_t (*)();
  static const auto real =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "ggml_tensor_overhead"));
  return real() + more_overhead;
}

namespace kvevict::tests {
namespace {

ModelHandle Random(const char* arch, uint32_t head_dim = 32) {
  RandomModel shape;
  shape.arch = arch;
  shape.head_dim = head_dim;
  if (shape.arch == "bloom") shape.n_embd = shape.n_heads * shape.head_dim;
  return LoadRandomModel(shape);
}

Test(llama_refusals, policies_of_unequal_lists) {
  kvevict_llama* kv = nullptr;
  for (const char* policy :
       {"pyramidkv:budget=64", "snapkv:budget=64,heads=adaptive",
        "cake:budget=64", "triattention:budget=64",
        "streaming-llm:budget=64,rotate=yes",
        "snapkv:budget=64,fit=bias-values"}) {
    cr_expect(
        kvevict_llama_create(policy, nullptr, &kv) == KVEVICT_ERROR_UNSUPPORTED,
        "%s", policy);
    ExpectPart(kvevict_llama_last_error_message(), " works");
  }
  cr_expect(kvevict_llama_create("snapkv:budget=", nullptr, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_expect(kvevict_llama_create(nullptr, nullptr, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_expect(kvevict_llama_create("snapkv", nullptr, nullptr) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  kvevict_llama_options options = KVEVICT_LLAMA_OPTIONS_INIT;
  options.struct_size = 4;
  cr_expect(kvevict_llama_create("snapkv", &options, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  options = KVEVICT_LLAMA_OPTIONS_INIT;
  options.query_rows = UINT32_MAX;
  cr_expect(kvevict_llama_create("h2o:budget=64", &options, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  ExpectPart(kvevict_llama_last_error_message(),
             "options.query_rows 4294967295 > 2147483631");
  kvevict_llama_destroy(nullptr);
}

Test(llama_refusals, a_context_that_is_not_there_yet) {
  const ModelHandle model = Random("llama");
  kvevict_llama* kv = nullptr;
  cr_assert(kvevict_llama_create("snapkv:budget=64", nullptr, &kv) ==
            KVEVICT_OK);
  ExpectInvalid(kvevict_llama_evict(kv, 0, nullptr, nullptr),
                "no context is attached");
  cr_expect(kvevict_llama_attach(kv, nullptr) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  kvevict_llama_destroy(kv);
  Session session(model.get(), "snapkv:budget=64", {});
  ExpectPart(session.EvictRefused(), "must decode a batch first");
  session.Decode(RandomTokens(10, session.n_vocab()));
  ExpectInvalid(kvevict_llama_evict(session.kv(), 1, nullptr, nullptr),
                "seq 1 is not in [0, 1)");
}

// With headers of another version it would take one node for another.
Test(llama_refusals, a_ggml_of_another_version) {
  const ModelHandle model = Random("llama");
  Session session(model.get(), "snapkv:budget=64", {});
  ops_are_others = true;
  ExpectUnsupported(kvevict_llama_attach(session.kv(), session.ctx()),
                    "is SET_ROWS there and ");
  ops_are_others = false;
  more_overhead = 8;
  ExpectUnsupported(kvevict_llama_attach(session.kv(), session.ctx()),
                    "tensors take ");
  more_overhead = 0;
  Check(kvevict_llama_attach(session.kv(), session.ctx()));
}

Test(llama_refusals, cells_that_others_changed) {
  // llama.cpp rotates quantized caches of heads of 64 and more.
  const ModelHandle model = Random("llama", 64);
  const auto tokens = RandomTokens(200, 256);
  for (const auto way : {KVEVICT_LLAMA_WAY_AUTO, KVEVICT_LLAMA_WAY_STATE}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool evicted = kind % 2 == 1;
      SessionOptions options;
      // Rotated rows are rotated back for the shift.
      if (kind >= 2) {
        options.type_k = options.type_v = GGML_TYPE_Q8_0;
        options.flash = true;
      }
      Session removed(model.get(), "snapkv:budget=64", options);
      Session shifted(model.get(), "snapkv:budget=64", options);
      for (Session* session : {&removed, &shifted}) {
        session->Decode(tokens);
        if (evicted) {
          session->Evict(0, way);
          session->Decode(tokens);
        }
      }
      llama_memory_seq_rm(removed.memory(), 0, 8, 20);
      ExpectPart(removed.EvictRefused(way), evicted ? "cells" : "removed");
      // Shifts the context as llama.cpp's examples do.
      llama_memory_seq_rm(shifted.memory(), 0, 8, 20);
      const llama_pos end = evicted ? 400 : 200;
      llama_memory_seq_add(shifted.memory(), 0, 20, end, -12);
      cr_expect(!shifted.EvictRefused(way).empty());
      shifted.Decode(tokens);
      ExpectPart(shifted.EvictRefused(way), "its positions were shifted");
      // It can be evicted again after it is removed and decoded anew.
      llama_memory_seq_rm(shifted.memory(), 0, -1, -1);
      shifted.Decode(tokens);
      cr_expect(shifted.Evict(0, way).cells_after == 64);
    }
  }
}

Test(llama_refusals, attention_that_cannot_be_scored) {
  const auto tokens = RandomTokens(200, 256);
  const ModelHandle alibi = Random("bloom");
  SessionOptions options;
  for (const bool flash : {false, true}) {
    options.flash = flash;
    Session attention(alibi.get(), "snapkv:budget=64,scope=model", options);
    attention.Decode(tokens);
    ExpectPart(attention.EvictRefused(), "ALiBi");
    Session heads(alibi.get(), "knorm:budget=64", options);
    heads.Decode(tokens);
    ExpectPart(heads.EvictRefused(), "scope=model works");
    for (const char* policy :
         {"knorm:budget=64,scope=model", "streaming-llm:budget=64"}) {
      Session one_list(alibi.get(), policy, options);
      one_list.Decode(tokens);
      cr_expect(one_list.Evict().cells_after == 64);
    }
    // Capped logits are scored.
    const ModelHandle capped = Random("gemma2");
    for (const char* policy : {"r-kv:budget=64,window=8", "h2o:budget=64"}) {
      Session session(capped.get(), policy, options);
      session.Decode(tokens);
      cr_expect(session.Evict().cells_after == 64, "%s", policy);
    }
  }
}

Test(llama_refusals, what_graphs_do_not_tell) {
  const ModelHandle model = Random("llama");
  SessionOptions options;
  options.n_seq = 2;
  options.unified = true;
  Session session(model.get(), "snapkv:budget=32,window=8", options);
  // This batch was not announced.
  std::vector<llama_token> tokens = RandomTokens(64, 256);
  cr_assert(
      llama_decode(session.ctx(), llama_batch_get_one(tokens.data(), 64)) == 0);
  ExpectPart(session.EvictRefused(), "without kvevict_llama_batch()");
  llama_memory_clear(session.memory(), true);
  session.Decode(tokens);
  cr_expect(session.Evict().cells_after == 32);

  // Two in one batch are announced by sequence and position alone.
  llama_memory_clear(session.memory(), true);
  std::vector<llama_seq_id> seqs;
  std::vector<llama_pos> positions;
  llama_batch batch = llama_batch_init(128, 0, 2);
  for (int32_t i = 0; i < 128; ++i) {
    seqs.push_back(i % 2);
    positions.push_back(i / 2);
    batch.token[i] = tokens[static_cast<size_t>(i / 2)];
    batch.pos[i] = i / 2;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = i % 2;
    batch.logits[i] = 0;
  }
  batch.n_tokens = 128;
  cr_expect(kvevict_llama_tokens(session.kv(), nullptr, nullptr, 128) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  Check(kvevict_llama_tokens(session.kv(), seqs.data(), positions.data(), 128));
  cr_assert(llama_decode(session.ctx(), batch) == 0);
  cr_expect(session.Evict(0).cells_after == 32);
  cr_expect(session.Evict(1).cells_after == 32);
  cr_expect(session.Positions(0, 0, 0) == session.Positions(0, 0, 1));
  // One token of both is copied instead.
  batch.n_seq_id[0] = 2;
  cr_expect(kvevict_llama_batch(session.kv(), &batch) ==
            KVEVICT_ERROR_UNSUPPORTED);
  ExpectPart(kvevict_llama_last_error_message(), "kvevict_llama_copy()");
  llama_batch_free(batch);

  SessionOptions windowed;
  const ModelHandle gemma = Random("gemma3");
  Session window(gemma.get(), "snapkv:budget=32,window=8", windowed);
  window.Decode(tokens);
  ExpectPart(window.EvictRefused(KVEVICT_LLAMA_WAY_IN_PLACE), "sliding window");
  // There are fewer queries than score.
  Session few(model.get(), "snapkv:budget=32,window=8", SessionOptions());
  few.Decode(tokens);
  Check(kvevict_llama_trim_to(few.kv(), 0, 44));
  ExpectPart(few.EvictRefused(), "last 8 queries, of which 4 are known");
  cr_expect(few.Positions().size() == 44);
  few.Decode(RandomTokens(4, 256));
  cr_expect(few.Evict().evicted == 1);
}

}  // namespace
}  // namespace kvevict::tests
