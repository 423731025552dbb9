// Contexts that the program makes, and which of them get an adapter.
#include "install.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
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

struct Places {
  size_t callback = offsetof(llama_context_params, cb_eval);
  size_t user_data = offsetof(llama_context_params, cb_eval_user_data);
  bool told = false;
} places;

template <typename T>
T Get(const AnyParams& params, size_t at) {
  T value;
  std::memcpy(&value, params.bytes + at, sizeof value);
  return value;
}

template <typename T>
void Set(AnyParams& params, size_t at, T value) {
  std::memcpy(params.bytes + at, &value, sizeof value);
}

// Whether the callback lies where it is thought to lie. The defaults of the callback tell
// and, if the headers say where, those of fields around it.
bool PlacesAreRight() {
  const AnyParams defaults = DefaultParams();
  const auto known = Get<llama_context_params>(defaults, 0);
  return Get<void*>(defaults, places.callback) == nullptr &&
         Get<void*>(defaults, places.user_data) == nullptr &&
         (places.told ||
          (known.type_k == GGML_TYPE_F16 && known.type_v == GGML_TYPE_F16 &&
           known.yarn_beta_fast == -1.0f));
}

// Why no context of the model is evicted; NULL if it is.
const char* WhyNot(const llama_model* model) {
  if (!PlacesAreRight()) {
    return "its llama_context_params is another one than this library was "
           "compiled with";
  }
  if (UPSTREAM(llama_model_has_encoder)(model)) {
    return "the model has an encoder";
  }
  return nullptr;
}

// The same for programs that know nothing of this library.
const char* WhyNotUnasked(const llama_model* model) {
  // Another context is that of a draft model, whose tokens are taken back at any time.
  if (HaveContext()) {
    return "the process has another one, and only the first one is evicted";
  }
  if (const char* why = WhyNot(model)) return why;
  if (UPSTREAM(llama_model_is_recurrent)(model) ||
      UPSTREAM(llama_model_is_hybrid)(model)) {
    return "the model has recurrent layers, and programs save the state of "
           "these layers alone";
  }
  if (UPSTREAM(llama_model_n_swa)(model) > 0) {
    return "the model has layers with a sliding window, and programs save the "
           "state of these layers alone";
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

thread_local std::optional<Order> next_order;
std::optional<Order> order_for_all;
std::mutex mutex;  // of two threads one makes the first context

// What is asked of the next context of this thread; nothing if it is not to be evicted.
std::optional<Order> Ordered() {
  if (next_order) return std::exchange(next_order, std::nullopt);
  if (order_for_all) return order_for_all;
  if (const char* const policy = Setting("KVEVICT_POLICY")) {
    return Order{.policy = policy, .unasked = true};
  }
  return std::nullopt;
}

// The file's bytes; "" if it cannot be read.
std::string ReadFile(const char* path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// The adapter of the context that will be made with `params`; NULL if there is none, and
// `why` then has the reason.
kvevict_llama* Install(const llama_model* model, const Order& order,
                       AnyParams& params, std::string& why) {
  if (const char* const reason =
          order.unasked ? WhyNotUnasked(model) : WhyNot(model)) {
    why = std::string("a context is left as it is: ") + reason;
    return nullptr;
  }
  std::string_view calibration = order.calibration;
  if (const char* const path =
          order.unasked ? Setting("KVEVICT_CALIBRATION") : nullptr) {
    static const std::string bytes = ReadFile(path);
    if (bytes.empty()) {
      why = std::string("nothing is evicted: KVEVICT_CALIBRATION=") + path +
            " cannot be read, or is empty";
      return nullptr;
    }
    calibration = bytes;
  }
  kvevict_llama_options options = KVEVICT_LLAMA_OPTIONS_INIT;
  options.query_rows = order.query_rows;
  if (!calibration.empty()) {
    options.calibration = calibration.data();
    options.calibration_len = calibration.size();
  }
  kvevict_llama* kv = nullptr;
  if (!UseUpstream() ||
      kvevict_llama_create(order.policy.c_str(), &options, &kv) != KVEVICT_OK) {
    why = std::string("nothing is evicted: ") +
          kvevict_llama_last_error_message();
    return nullptr;
  }
  kvevict_llama_chain(
      kv, Get<ggml_backend_sched_eval_callback>(params, places.callback),
      Get<void*>(params, places.user_data));
  Set(params, places.callback, &kvevict_llama_eval);
  Set(params, places.user_data, kv);
  return kv;
}

// The length that the program takes a sequence to have room for.
uint32_t Length(const llama_context* ctx, uint32_t n_cells) {
  const Context* const c = Find(ctx);
  if (c == nullptr) return n_cells;
  if (c->n_ctx_told > 0) return std::max(n_cells, c->n_ctx_told);
  const char* const text = Setting("KVEVICT_N_CTX");
  if (text == nullptr) return n_cells;
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

void SetNextOrder(std::optional<Order> order) { next_order = std::move(order); }

void SetOrderForAll(std::optional<Order> order) {
  const std::lock_guard lock(mutex);
  order_for_all = std::move(order);
}

void SetPlaces(size_t callback, size_t user_data) {
  const std::lock_guard lock(mutex);
  places = {.callback = callback, .user_data = user_data, .told = true};
}

HOOK(llama_context*, llama_init_from_model, llama_model* model,
     AnyParams params) {
  if (inside) return NEXT(llama_init_from_model)(model, params);
  const std::lock_guard lock(mutex);
  const std::optional<Order> order = Ordered();
  if (!order) return NEXT(llama_init_from_model)(model, params);
  const Inside guard;
  Context context;
  context.automatic = order->automatic;
  context.n_ctx_told = order->n_ctx_told;
  context.kv = Install(model, *order, params, context.refusal);
  llama_context* const ctx = NEXT(llama_init_from_model)(model, params);
  if (ctx == nullptr) {
    kvevict_llama_destroy(context.kv);
    return nullptr;
  }
  // The graphs of a context that the adapter refuses call the adapter all the same.
  if (context.kv != nullptr &&
      kvevict_llama_attach(context.kv, ctx) == KVEVICT_OK) {
    const uint32_t n_sequences = UPSTREAM(llama_n_seq_max)(ctx);
    context.memory = UPSTREAM(llama_get_memory)(ctx);
    context.sequences.resize(n_sequences);
    const auto report = [&](const auto&... parts) {
      order->unasked ? SayOnce(parts...) : Log(parts...);
    };
    report(order->policy, ": a context of ", UPSTREAM(llama_n_ctx)(ctx),
           " cells and ", n_sequences, " sequences is evicted");
  } else {
    if (context.kv != nullptr) {
      context.refusal = std::string("a context is left as it is: ") +
                        kvevict_llama_last_error_message();
    }
    SayOnce(context.refusal);
    if (context.kv == nullptr && order->unasked) return ctx;
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
