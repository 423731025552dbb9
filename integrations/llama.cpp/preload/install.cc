// Contexts that the program makes: the first one gets an adapter.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "context.h"
#include "hook.h"
#include "log.h"

namespace kvevict::llama_preload {

// llama_context_params of any version. A struct of this size is passed by value on the
// stack; the bytes behind a shorter one are handed on unread.
struct alignas(8) AnyParams {
  unsigned char bytes[512];
};
static_assert(sizeof(AnyParams) > sizeof(llama_context_params) + 128);

namespace {

AnyParams DefaultParams() {
  return reinterpret_cast<AnyParams (*)()>(
      dlsym(RTLD_NEXT, "llama_context_default_params"))();
}

// Whether the callback lies where the headers say. The defaults of the callback and of
// fields around it tell.
bool ParamsAreKnown() {
  const AnyParams defaults = DefaultParams();
  llama_context_params known;
  std::memcpy(&known, defaults.bytes, sizeof known);
  return known.cb_eval == nullptr && known.cb_eval_user_data == nullptr &&
         known.type_k == GGML_TYPE_F16 && known.type_v == GGML_TYPE_F16 &&
         known.yarn_beta_fast == -1.0f;
}

// Why a context of the model is left as it is; NULL if it is evicted.
const char* WhyNot(const llama_model* model) {
  // Another context is that of a draft model, whose tokens are taken back at any time.
  if (HaveContext()) {
    return "the process has another one, and only the first one is evicted";
  }
  if (!ParamsAreKnown()) {
    return "its llama_context_params is another one than this library was "
           "compiled with";
  }
  if (UPSTREAM(llama_model_is_recurrent)(model) ||
      UPSTREAM(llama_model_is_hybrid)(model)) {
    return "the model has recurrent layers, and programs save the state of "
           "these layers alone";
  }
  if (UPSTREAM(llama_model_n_swa)(model) > 0) {
    return "the model has layers with a sliding window, and programs save the "
           "state of these layers alone";
  }
  if (UPSTREAM(llama_model_has_encoder)(model)) {
    return "the model has an encoder";
  }
  return nullptr;
}

// Lets the adapter call libllama's functions, not the hooks.
bool UseUpstream() {
  static const bool used = [] {
    Dl_info info = {};
    if (dladdr(dlsym(RTLD_NEXT, "llama_decode"), &info) == 0) return false;
    void* const handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return handle != nullptr &&
           kvevict_llama_use(nullptr, handle) == KVEVICT_OK;
  }();
  return used;
}

// The adapter of the context that will be made with `params`; NULL if there is none, and
// why was said.
kvevict_llama* Install(const llama_model* model, const char* policy,
                       AnyParams& params) {
  if (const char* why = WhyNot(model)) {
    SayOnce("a context is left as it is: ", why);
    return nullptr;
  }
  kvevict_llama* kv = nullptr;
  if (!UseUpstream() ||
      kvevict_llama_create(policy, nullptr, &kv) != KVEVICT_OK) {
    SayOnce("nothing is evicted: ", kvevict_llama_last_error_message());
    return nullptr;
  }
  llama_context_params known;
  std::memcpy(&known, params.bytes, sizeof known);
  kvevict_llama_install(kv, &known);
  constexpr size_t kAt = offsetof(llama_context_params, cb_eval);
  std::memcpy(params.bytes + kAt, &known.cb_eval, sizeof known.cb_eval);
  constexpr size_t kDataAt = offsetof(llama_context_params, cb_eval_user_data);
  std::memcpy(params.bytes + kDataAt, &known.cb_eval_user_data,
              sizeof known.cb_eval_user_data);
  return kv;
}

// The length that the program takes a sequence to have room for.
uint32_t Length(const llama_context* ctx, uint32_t n_cells) {
  const char* const text = Setting("KVEVICT_N_CTX");
  if (text == nullptr || Find(ctx) == nullptr) return n_cells;
  char* end = nullptr;
  const unsigned long n = std::strtoul(text, &end, 10);
  if (*end != '\0' || n > INT32_MAX) {
    SayOnce("KVEVICT_N_CTX=", text, " is not in [0, ", INT32_MAX,
            "], and has no effect");
    return n_cells;
  }
  return std::max(n_cells, static_cast<uint32_t>(n));
}

}  // namespace

HOOK(llama_context*, llama_init_from_model, llama_model* model,
     AnyParams params) {
  const char* const policy = Setting("KVEVICT_POLICY");
  if (policy == nullptr || inside) {
    return NEXT(llama_init_from_model)(model, params);
  }
  static std::mutex mutex;  // of two threads one makes the first context
  const std::lock_guard lock(mutex);
  const Inside guard;
  kvevict_llama* const kv = Install(model, policy, params);
  llama_context* const ctx = NEXT(llama_init_from_model)(model, params);
  if (kv == nullptr) return ctx;
  if (ctx == nullptr) {
    kvevict_llama_destroy(kv);
    return nullptr;
  }
  // The graphs of a context that the adapter refuses call the adapter all the same.
  Context context;
  context.kv = kv;
  if (kvevict_llama_attach(kv, ctx) == KVEVICT_OK) {
    const uint32_t n_sequences = UPSTREAM(llama_n_seq_max)(ctx);
    context.memory = UPSTREAM(llama_get_memory)(ctx);
    context.sequences.resize(n_sequences);
    SayOnce(policy, ": a context of ", UPSTREAM(llama_n_ctx)(ctx),
            " cells and ", n_sequences, " sequences is evicted");
  } else {
    SayOnce("a context is left as it is: ", kvevict_llama_last_error_message());
  }
  Add(ctx, std::move(context));
  return ctx;
}

HOOK(void, llama_free, llama_context* ctx) {
  NEXT(llama_free)(ctx);
  Remove(ctx);
}

HOOK(uint32_t, llama_n_ctx, const llama_context* ctx) {
  return Length(ctx, NEXT(llama_n_ctx)(ctx));
}
HOOK(uint32_t, llama_n_ctx_seq, const llama_context* ctx) {
  return Length(ctx, NEXT(llama_n_ctx_seq)(ctx));
}

}  // namespace kvevict::llama_preload
