// What the C# package asks of the hooks. LLamaSharp takes the library of this file for
// libllama: it has the hooks, needs libllama.so, and so offers libllama's other functions
// too. The package calls kvevict_llama_*() and these functions.
#include <cstddef>
#include <cstdint>

#include "context.h"
#include "hook.h"
#include "install.h"
#include "log.h"

using namespace kvevict::llama_preload;

#define KVEVICT_LLAMASHARP_API __attribute__((visibility("default")))

extern "C" {

/* Where .NET's own struct has cb_eval and cb_eval_user_data. */
KVEVICT_LLAMASHARP_API void kvevict_llamasharp_places(size_t callback,
                                                      size_t user_data) {
  SetPlaces(callback, user_data);
}

/* The next context of this thread, or all without an order of their own; policy NULL: none.
 * Policy and options must be some that kvevict_llama_create() takes; the calibration is
 * copied. */
KVEVICT_LLAMASHARP_API void kvevict_llamasharp_order(
    const char* policy, const kvevict_llama_options* options, int32_t automatic,
    uint32_t n_ctx_told, int32_t for_all) {
  std::optional<Order> order;
  if (policy != nullptr) {
    order =
        Order{.policy = policy,
              .query_rows = options->query_rows,
              .calibration = {static_cast<const char*>(options->calibration),
                              options->calibration_len},
              .automatic = automatic != 0,
              .n_ctx_told = n_ctx_told};
  }
  if (for_all != 0) {
    SetOrderForAll(std::move(order));
  } else {
    SetNextOrder(std::move(order));
  }
}

/* The adapter of a context; NULL if it is not evicted, and why. */
KVEVICT_LLAMASHARP_API kvevict_llama* kvevict_llamasharp_adapter(
    const llama_context* ctx, const char** out_why) {
  const Context* const context = FindAny(ctx);
  *out_why = "the context was created without a policy";
  if (context == nullptr) return nullptr;
  *out_why = context->refusal.c_str();
  return context->memory == nullptr ? nullptr : context->kv;
}

/* Whether a context with an adapter is evicted after each decode; value < 0: only asks. */
KVEVICT_LLAMASHARP_API int32_t
kvevict_llamasharp_automatic(const llama_context* ctx, int32_t value) {
  Context* const context = FindAny(ctx);
  if (value >= 0) context->automatic = value != 0;
  return context->automatic ? 1 : 0;
}

/* The package has evicted or loaded a sequence. */
KVEVICT_LLAMASHARP_API void kvevict_llamasharp_changed(const llama_context* ctx,
                                                       llama_seq_id seq) {
  if (Context* const context = FindAny(ctx)) context->LearnExactFrom(seq);
}

KVEVICT_LLAMASHARP_API void kvevict_llamasharp_log(Sink write) { sink = write; }

}  // extern "C"
