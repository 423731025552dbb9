// LD_PRELOAD=libkvevict-llama-preload.so KVEVICT_POLICY=snapkv:budget=2048
// llama-server: an unmodified program evicts. The functions of llama.cpp that
// announce batches and change sequences are defined here again, and the program
// finds these definitions before libllama's. Each does what the original does,
// and tells the adapter. Linux only.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kvevict-llama.h"
#include "log.h"

namespace kvevict::llama_preload {

// Defines a function of llama.cpp here, whatever its header declares: some
// exist only in newer versions.
#define HOOK(result, name, ...)                   \
  __attribute__((visibility("default")))          \
  result Hook_##name(__VA_ARGS__) __asm__(#name); \
  result Hook_##name(__VA_ARGS__)
// The same function of libllama.
#define NEXT(name) Next<decltype(&Hook_##name), k_##name>()
#define NAMES(name) constexpr char k_##name[] = #name

template <typename Function, const char* name>
Function Next() {
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  return next;
}

// A function of libllama that is not defined here.
#define UPSTREAM(name) \
  reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))

struct Row {
  llama_seq_id seq = 0;
  llama_pos position = -1;  // -1: not known
  bool output = false;
  bool shared = false;  // with other sequences
};
using Rows = std::vector<Row>;

// What the program may do with a sequence.
struct Sequence {
  // It can be taken back to any length from here on, and not to shorter ones;
  // 0: to any.
  uint32_t exact_from = 0;
  bool said = false;   // the reason why it is not evicted was logged
  bool waits = false;  // it waits for queries that score, and this was logged
};

struct Context {
  kvevict_llama* kv;
  llama_memory_t memory;
  std::vector<Sequence> sequences;
  // refusals that were logged
  bool refused_shift = false, refused_state = false;
};

std::mutex mutex;
std::map<const llama_context*, Context> contexts;  // one at present
std::map<const void*, Rows> extended_batches;      // by llama_batch_ext*

// llama.cpp and the adapter also call functions that are defined here.
thread_local bool inside = false;
class Inside {
 public:
  Inside() : before_(inside) { inside = true; }
  ~Inside() { inside = before_; }

 private:
  bool before_;
};

// The context, if it is evicted and the program itself is the caller.
Context* Find(const llama_context* ctx) {
  if (inside) return nullptr;
  const std::lock_guard lock(mutex);
  const auto it = contexts.find(ctx);
  if (it == contexts.end() || it->second.memory == nullptr) return nullptr;
  return &it->second;
}

Context* FindByMemory(llama_memory_t memory) {
  if (inside) return nullptr;
  const std::lock_guard lock(mutex);
  for (auto& [_, context] : contexts) {
    if (context.memory == memory) return &context;
  }
  return nullptr;
}

// The sequences that a sequence number of llama.cpp stands for: all if it is
// negative.
std::span<Sequence> Of(Context& c, llama_seq_id seq) {
  if (seq < 0) return c.sequences;
  if (static_cast<size_t>(seq) >= c.sequences.size()) return {};
  return {&c.sequences[static_cast<size_t>(seq)], 1};
}

bool AnyEvicted(Context& c, llama_seq_id seq) {
  const auto of = Of(c, seq);
  return std::any_of(of.begin(), of.end(),
                     [](const Sequence& s) { return s.exact_from > 0; });
}

void LearnExactFrom(Context& c, llama_seq_id seq) {
  for (Sequence& s : Of(c, seq)) {
    if (kvevict_llama_evicted_at(c.kv, seq, &s.exact_from) != KVEVICT_OK) {
      s.exact_from = 0;
    }
  }
}

// ---- Contexts ---------------------------------------------------------------

// llama_context_params of any version. Passed by value it is on the stack;
// bytes after a shorter one are passed along unread.
struct alignas(8) AnyParams {
  unsigned char bytes[512];
};
static_assert(sizeof(AnyParams) > sizeof(llama_context_params) + 128);
NAMES(llama_init_from_model);
NAMES(llama_free);

AnyParams DefaultParams() {
  return reinterpret_cast<AnyParams (*)()>(
      dlsym(RTLD_NEXT, "llama_context_default_params"))();
}

// Whether the callback is where the headers say, judged by adjacent fields with
// known defaults.
bool ParamsAreKnown() {
  const AnyParams defaults = DefaultParams();
  llama_context_params known;
  std::memcpy(&known, defaults.bytes, sizeof known);
  return known.cb_eval == nullptr && known.cb_eval_user_data == nullptr &&
         known.type_k == GGML_TYPE_F16 && known.type_v == GGML_TYPE_F16 &&
         known.yarn_beta_fast == -1.0f;
}

const char* WhyNot(const llama_model* model) {
  if (!contexts.empty()) {
    return "another context is evicted already, and of a process the first one "
           "is: a draft's tokens are taken back at any time";
  }
  if (!ParamsAreKnown()) {
    return "its llama_context_params is another one than this library was "
           "compiled with";
  }
  if (UPSTREAM(llama_model_is_recurrent)(model) ||
      UPSTREAM(llama_model_is_hybrid)(model)) {
    return "the model has recurrent layers, which programs restore by states "
           "of these alone";
  }
  if (UPSTREAM(llama_model_n_swa)(model) > 0) {
    return "the model has layers with a sliding window, which programs restore "
           "by states of these alone";
  }
  if (UPSTREAM(llama_model_has_encoder)(model)) {
    return "the model has an encoder";
  }
  return nullptr;
}

// Makes the adapter call libllama, not the functions defined here.
bool UseUpstream() {
  static const bool used = [] {
    Dl_info info = {};
    void* const handle = dladdr(dlsym(RTLD_NEXT, "llama_decode"), &info) != 0
                             ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                             : nullptr;
    return handle != nullptr &&
           kvevict_llama_use(nullptr, handle) == KVEVICT_OK;
  }();
  return used;
}

kvevict_llama* Install(const llama_model* model, const char* policy,
                       AnyParams& params) {
  if (const char* why = WhyNot(model)) {
    Say("a context is left as it is: ", why);
    return nullptr;
  }
  kvevict_llama* kv = nullptr;
  if (!UseUpstream() ||
      kvevict_llama_create(policy, nullptr, &kv) != KVEVICT_OK) {
    Say("nothing is evicted: ", kvevict_llama_last_error_message());
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

HOOK(llama_context*, llama_init_from_model, llama_model* model,
     AnyParams params) {
  const char* const policy = Setting("KVEVICT_POLICY");
  if (policy == nullptr || inside) {
    return NEXT(llama_init_from_model)(model, params);
  }
  const Inside guard;
  const std::lock_guard lock(mutex);
  kvevict_llama* const kv = Install(model, policy, params);
  llama_context* const ctx = NEXT(llama_init_from_model)(model, params);
  if (kv == nullptr) return ctx;
  if (ctx == nullptr) {
    kvevict_llama_destroy(kv);
    return nullptr;
  }
  llama_memory_t memory = nullptr;
  if (kvevict_llama_attach(kv, ctx) == KVEVICT_OK) {
    memory = UPSTREAM(llama_get_memory)(ctx);
    Say(policy, ": a context of ", UPSTREAM(llama_n_ctx)(ctx), " cells and ",
        UPSTREAM(llama_n_seq_max)(ctx), " sequences is evicted");
  } else {
    Say("a context is left as it is: ", kvevict_llama_last_error_message());
  }
  // Its graphs call the adapter as long as the context lives.
  contexts[ctx] = {kv, memory,
                   std::vector<Sequence>(
                       memory != nullptr ? UPSTREAM(llama_n_seq_max)(ctx) : 0)};
  return ctx;
}

HOOK(void, llama_free, llama_context* ctx) {
  NEXT(llama_free)(ctx);
  const std::lock_guard lock(mutex);
  const auto it = contexts.find(ctx);
  if (it == contexts.end()) return;
  kvevict_llama_destroy(it->second.kv);
  contexts.erase(it);
}

// The length of a sequence that programs see. It may exceed the number of
// cells.
uint32_t Length(const llama_context* ctx, uint32_t cells) {
  const char* const text = Setting("KVEVICT_N_CTX");
  const Context* const c = text != nullptr ? Find(ctx) : nullptr;
  if (c == nullptr) return cells;
  const unsigned long n = std::strtoul(text, nullptr, 10);
  return std::max(cells, static_cast<uint32_t>(std::min(n, 0x7ffffffful)));
}

NAMES(llama_n_ctx);
NAMES(llama_n_ctx_seq);
HOOK(uint32_t, llama_n_ctx, const llama_context* ctx) {
  return Length(ctx, NEXT(llama_n_ctx)(ctx));
}
HOOK(uint32_t, llama_n_ctx_seq, const llama_context* ctx) {
  return Length(ctx, NEXT(llama_n_ctx_seq)(ctx));
}

// ---- Batches ----------------------------------------------------------------

void Announce(Context& c, const Rows& rows) {
  std::vector<llama_seq_id> seqs;
  std::vector<llama_pos> positions;
  for (const Row& row : rows) {
    if (row.shared) return;  // the adapter notices
    seqs.push_back(row.seq);
    if (row.position >= 0) positions.push_back(row.position);
  }
  kvevict_llama_tokens(
      c.kv, seqs.data(),
      positions.size() == seqs.size() ? positions.data() : nullptr,
      seqs.size());
}

// Whether only a sequence's next token is requested: then its prompt has been
// read. Several outputs are requested for drafts, which may be taken back.
bool IsToBeEvicted(const Rows& rows, llama_seq_id seq) {
  const Row* last = nullptr;
  size_t outputs = 0;
  for (const Row& row : rows) {
    if (row.seq != seq) continue;
    last = &row;
    outputs += row.output ? 1 : 0;
  }
  return last != nullptr && last->output && outputs == 1;
}

// Returns false if a sequence was lost.
bool Evict(Context& c, const Rows& rows) {
  for (size_t i = 0; i < c.sequences.size(); ++i) {
    Sequence& s = c.sequences[i];
    const auto seq = static_cast<llama_seq_id>(i);
    if (!IsToBeEvicted(rows, seq)) continue;
    kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
    const kvevict_status status =
        kvevict_llama_evict(c.kv, seq, nullptr, &report);
    if (status == KVEVICT_OK) {
      s.said = s.waits = false;
      if (report.evicted == 0) continue;
      LearnExactFrom(c, seq);
      Log("seq ", seq, " at ", s.exact_from, ": ", report.cells_before, " -> ",
          report.cells_after, " cells, ", report.bytes_before >> 10, " -> ",
          report.bytes_after >> 10, " KiB, ", report.total_ms, " ms, ",
          report.in_place != 0 ? "in place" : "by state");
      continue;
    }
    const std::string why = kvevict_llama_last_error_message();
    const bool lost = why.starts_with("sequence lost: ");
    if (status == KVEVICT_ERROR_INVALID_ARGUMENT) {
      if (!s.waits) Log("seq ", seq, " is not evicted yet: ", why);
      s.waits = true;
      continue;
    }
    if (!s.said) Say("seq ", seq, " is not evicted: ", why);
    s.said = !lost;
    if (lost) {
      s = {};
      return false;
    }
  }
  return true;
}

template <typename Decode>
int32_t Process(Context& c, const Rows& rows, Decode&& decode) {
  constexpr int32_t kFailed = -3;
  const Inside guard;
  Announce(c, rows);
  const int32_t status = decode();
  return status == 0 && !Evict(c, rows) ? kFailed : status;
}

NAMES(llama_decode);
HOOK(int32_t, llama_decode, llama_context* ctx, llama_batch batch) {
  Context* const c = Find(ctx);
  if (c == nullptr) {
    return NEXT(llama_decode)(ctx, batch);
  }
  Rows rows(static_cast<size_t>(std::max(batch.n_tokens, 0)));
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (batch.seq_id != nullptr) row.seq = batch.seq_id[i][0];
    if (batch.pos != nullptr) row.position = batch.pos[i];
    row.shared = batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1;
    row.output =
        batch.logits != nullptr ? batch.logits[i] != 0 : i + 1 == rows.size();
  }
  return Process(*c, rows, [&] { return NEXT(llama_decode)(ctx, batch); });
}

// Since 0.7 programs fill a llama_batch_ext, whose contents cannot be read.
using Batch = void;
struct Embedding {  // llama_embd
  const float* data;
  size_t n_rows, n_embd;
};

int32_t AddRow(const Batch* batch, llama_seq_id seq, int32_t index) {
  if (inside || index < 0) return index;
  const std::lock_guard lock(mutex);
  Rows& rows = extended_batches[batch];
  rows.resize(std::max(rows.size(), static_cast<size_t>(index) + 1));
  rows[static_cast<size_t>(index)] = {.seq = seq};
  return index;
}

template <typename Change>
void ChangeRow(const Batch* batch, int32_t index, Change&& change) {
  if (inside) return;
  const std::lock_guard lock(mutex);
  Rows& rows = extended_batches[batch];
  if (index >= 0 && static_cast<size_t>(index) < rows.size()) {
    change(rows[static_cast<size_t>(index)]);
  }
}

NAMES(llama_batch_ext_add);
NAMES(llama_batch_ext_add_token);
NAMES(llama_batch_ext_add_embd);
NAMES(llama_batch_ext_add_seq);
NAMES(llama_batch_ext_set_pos);
NAMES(llama_batch_ext_set_output_logits);
NAMES(llama_batch_ext_set_output_embd);
NAMES(llama_batch_ext_clear);
NAMES(llama_batch_ext_free);
NAMES(llama_process);
HOOK(int32_t, llama_batch_ext_add, Batch* batch, llama_seq_id seq) {
  return AddRow(batch, seq, NEXT(llama_batch_ext_add)(batch, seq));
}
HOOK(int32_t, llama_batch_ext_add_token, Batch* batch, llama_seq_id seq,
     llama_token token) {
  return AddRow(batch, seq, NEXT(llama_batch_ext_add_token)(batch, seq, token));
}
HOOK(int32_t, llama_batch_ext_add_embd, Batch* batch, llama_seq_id seq,
     Embedding embedding) {
  return AddRow(batch, seq,
                NEXT(llama_batch_ext_add_embd)(batch, seq, embedding));
}
HOOK(bool, llama_batch_ext_add_seq, Batch* batch, int32_t index,
     llama_seq_id seq) {
  ChangeRow(batch, index, [&](Row& row) { row.shared |= row.seq != seq; });
  return NEXT(llama_batch_ext_add_seq)(batch, index, seq);
}
HOOK(bool, llama_batch_ext_set_pos, Batch* batch, int32_t index,
     const llama_pos* position) {
  ChangeRow(batch, index, [&](Row& row) { row.position = *position; });
  return NEXT(llama_batch_ext_set_pos)(batch, index, position);
}
HOOK(bool, llama_batch_ext_set_output_logits, Batch* batch, int32_t index,
     bool value) {
  ChangeRow(batch, index, [&](Row& row) { row.output = value; });
  return NEXT(llama_batch_ext_set_output_logits)(batch, index, value);
}
HOOK(bool, llama_batch_ext_set_output_embd, Batch* batch, int32_t index,
     bool value) {
  ChangeRow(batch, index, [&](Row& row) { row.output = value; });
  return NEXT(llama_batch_ext_set_output_embd)(batch, index, value);
}
HOOK(void, llama_batch_ext_clear, Batch* batch) {
  if (!inside) {
    const std::lock_guard lock(mutex);
    extended_batches.erase(batch);
  }
  NEXT(llama_batch_ext_clear)(batch);
}
HOOK(void, llama_batch_ext_free, Batch* batch) {
  if (!inside) {
    const std::lock_guard lock(mutex);
    extended_batches.erase(batch);
  }
  NEXT(llama_batch_ext_free)(batch);
}
HOOK(int32_t, llama_process, llama_context* ctx, int type, Batch* batch) {
  Context* const c = Find(ctx);
  constexpr int kDecode = 1;  // LLAMA_PROCESS_TYPE_DECODE
  if (c == nullptr || type != kDecode) {
    return NEXT(llama_process)(ctx, type, batch);
  }
  Rows rows;
  {
    const std::lock_guard lock(mutex);
    rows = extended_batches[batch];
  }
  return Process(*c, rows,
                 [&] { return NEXT(llama_process)(ctx, type, batch); });
}

// ---- Sequences --------------------------------------------------------------

NAMES(llama_memory_seq_rm);
NAMES(llama_memory_seq_cp);
NAMES(llama_memory_seq_keep);
NAMES(llama_memory_seq_add);
NAMES(llama_memory_seq_div);
NAMES(llama_memory_seq_pos_min);
NAMES(llama_memory_can_shift);
NAMES(llama_memory_clear);

// Heads have kept different tokens. So an evicted sequence has no middle that
// could be removed, and no end that begins before the eviction.
HOOK(bool, llama_memory_seq_rm, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr) return NEXT(llama_memory_seq_rm)(memory, seq, from, to);
  const Inside guard;
  if (from <= 0 && to < 0) {
    for (Sequence& s : Of(*c, seq)) s = {};
    return NEXT(llama_memory_seq_rm)(memory, seq, from, to);
  }
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    if (seq >= 0 && static_cast<size_t>(seq) != i) continue;
    const llama_pos last = UPSTREAM(llama_memory_seq_pos_max)(
        memory, static_cast<llama_seq_id>(i));
    const bool is_tail = to < 0 || to > last;
    const auto exact_from = static_cast<int64_t>(c->sequences[i].exact_from);
    if (exact_from > 0 && from <= last && (from < exact_from || !is_tail)) {
      return false;
    }
    if (seq >= 0 && is_tail && from > 0 && from <= last &&
        kvevict_llama_trim_to(c->kv, seq, static_cast<uint32_t>(from)) ==
            KVEVICT_OK) {
      return true;
    }
  }
  return NEXT(llama_memory_seq_rm)(memory, seq, from, to);
}

// The lengths to which a sequence can be taken back. Programs ask models with
// sliding windows for this. It goes down to what is held.
HOOK(llama_pos, llama_memory_seq_pos_min, llama_memory_t memory,
     llama_seq_id seq) {
  const llama_pos first = NEXT(llama_memory_seq_pos_min)(memory, seq);
  Context* const c = FindByMemory(memory);
  if (c == nullptr || seq < 0 || first < 0 || !AnyEvicted(*c, seq))
    return first;
  return std::max(first, static_cast<llama_pos>(Of(*c, seq)[0].exact_from) - 1);
}

HOOK(void, llama_memory_seq_cp, llama_memory_t memory, llama_seq_id from,
     llama_seq_id to, llama_pos begin, llama_pos end) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr || from == to) {
    return NEXT(llama_memory_seq_cp)(memory, from, to, begin, end);
  }
  const Inside guard;
  if (begin > 0 || end >= 0 ||
      kvevict_llama_copy(c->kv, from, to) != KVEVICT_OK) {
    NEXT(llama_memory_seq_cp)(memory, from, to, begin, end);
    kvevict_llama_invalidate(c->kv, to);
  }
  if (!Of(*c, to).empty() && !Of(*c, from).empty()) {
    Of(*c, to)[0] = {.exact_from = Of(*c, from)[0].exact_from};
  }
}

HOOK(void, llama_memory_seq_keep, llama_memory_t memory, llama_seq_id seq) {
  if (Context* const c = FindByMemory(memory)) {
    for (size_t i = 0; i < c->sequences.size(); ++i) {
      if (static_cast<llama_seq_id>(i) != seq) c->sequences[i] = {};
    }
  }
  NEXT(llama_memory_seq_keep)(memory, seq);
}

bool RefusesShift(llama_memory_t memory, llama_seq_id seq) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr || !AnyEvicted(*c, seq)) return false;
  if (!c->refused_shift) {
    Say("seq ", seq,
        " was evicted, and its positions are not shifted, which "
        "llama_memory_can_shift() had said");
  }
  c->refused_shift = true;
  return true;
}

HOOK(void, llama_memory_seq_add, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to, llama_pos delta) {
  if (delta != 0 && RefusesShift(memory, seq)) return;
  NEXT(llama_memory_seq_add)(memory, seq, from, to, delta);
}

HOOK(void, llama_memory_seq_div, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to, int divisor) {
  if (divisor != 1 && RefusesShift(memory, seq)) return;
  NEXT(llama_memory_seq_div)(memory, seq, from, to, divisor);
}

HOOK(bool, llama_memory_can_shift, llama_memory_t memory) {
  return FindByMemory(memory) == nullptr &&
         NEXT(llama_memory_can_shift)(memory);
}

HOOK(void, llama_memory_clear, llama_memory_t memory, bool data) {
  if (Context* const c = FindByMemory(memory)) {
    for (Sequence& s : c->sequences) s = {};
  }
  NEXT(llama_memory_clear)(memory, data);
}

// ---- States -----------------------------------------------------------------

NAMES(llama_state_seq_get_size);
NAMES(llama_state_seq_get_size_ext);
NAMES(llama_state_seq_get_data);
NAMES(llama_state_seq_get_data_ext);
NAMES(llama_state_seq_set_data);
NAMES(llama_state_seq_set_data_ext);
NAMES(llama_state_seq_save_file);
NAMES(llama_state_seq_load_file);
NAMES(llama_state_get_data);
NAMES(llama_state_set_data);
NAMES(llama_state_save_file);
NAMES(llama_state_load_file);

// Follows the bytes of a sequence's state.
struct Trailer {
  char magic[8] = {'K', 'V', 'E', 'S', 'T', 'A', 'T', 'E'};
  uint32_t exact_from = 0;
  // 1: written by kvevict_llama_save_data(); 0: llama.cpp's own state.
  uint32_t is_session = 0;
};

// Returns the bytes of a state, and writes them unless `out` is NULL; 0 without
// room.
size_t GetState(llama_context* ctx, Context& c, llama_seq_id seq, uint8_t* out,
                size_t capacity) {
  const Inside guard;
  Trailer trailer;
  if (Of(c, seq).empty()) return 0;
  trailer.exact_from = Of(c, seq)[0].exact_from;
  size_t n = 0;
  const size_t room = capacity > sizeof trailer ? capacity - sizeof trailer : 0;
  trailer.is_session = kvevict_llama_save_data(c.kv, seq, nullptr, 0, nullptr,
                                               0, &n) == KVEVICT_OK;
  if (trailer.is_session == 0) {
    n = UPSTREAM(llama_state_seq_get_size)(ctx, seq);
  }
  if (out == nullptr) return n + sizeof trailer;
  if (n > room) return 0;
  if (trailer.is_session == 0) {
    n = UPSTREAM(llama_state_seq_get_data)(ctx, out, room, seq);
  } else if (kvevict_llama_save_data(c.kv, seq, nullptr, 0, out, room, &n) !=
             KVEVICT_OK) {
    return 0;
  }
  if (n == 0) return 0;
  std::memcpy(out + n, &trailer, sizeof trailer);
  return n + sizeof trailer;
}

size_t SetState(llama_context* ctx, Context& c, llama_seq_id seq,
                const uint8_t* data, size_t size) {
  const Inside guard;
  if (Of(c, seq).empty()) return 0;
  Trailer trailer;
  const Trailer expected;
  size_t n = size;
  if (size > sizeof trailer) {
    std::memcpy(&trailer, data + size - sizeof trailer, sizeof trailer);
    if (std::memcmp(trailer.magic, expected.magic, sizeof expected.magic) ==
        0) {
      n -= sizeof trailer;
    } else {
      trailer = expected;
    }
  }
  Sequence& s = Of(c, seq)[0];
  s = {};
  if (trailer.is_session != 0) {
    if (kvevict_llama_load_data(c.kv, seq, data, n, nullptr, 0, nullptr) !=
        KVEVICT_OK) {
      Say("seq ", seq,
          ": a state is not set: ", kvevict_llama_last_error_message());
      return 0;
    }
    LearnExactFrom(c, seq);
    return size;
  }
  if (UPSTREAM(llama_state_seq_set_data)(ctx, data, n, seq) == 0) return 0;
  s.exact_from = trailer.exact_from;
  kvevict_llama_invalidate(c.kv, seq);
  return size;
}

HOOK(size_t, llama_state_seq_get_size, llama_context* ctx, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_get_size)(ctx, seq);
  return GetState(ctx, *c, seq, nullptr, 0);
}
HOOK(size_t, llama_state_seq_get_size_ext, llama_context* ctx, llama_seq_id seq,
     llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    return NEXT(llama_state_seq_get_size_ext)(ctx, seq, flags);
  }
  return GetState(ctx, *c, seq, nullptr, 0);
}
HOOK(size_t, llama_state_seq_get_data, llama_context* ctx, uint8_t* out,
     size_t size, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_get_data)(ctx, out, size, seq);
  return GetState(ctx, *c, seq, out, size);
}
HOOK(size_t, llama_state_seq_get_data_ext, llama_context* ctx, uint8_t* out,
     size_t size, llama_seq_id seq, llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    return NEXT(llama_state_seq_get_data_ext)(ctx, out, size, seq, flags);
  }
  return GetState(ctx, *c, seq, out, size);
}
HOOK(size_t, llama_state_seq_set_data, llama_context* ctx, const uint8_t* data,
     size_t size, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_set_data)(ctx, data, size, seq);
  return SetState(ctx, *c, seq, data, size);
}
HOOK(size_t, llama_state_seq_set_data_ext, llama_context* ctx,
     const uint8_t* data, size_t size, llama_seq_id seq,
     llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    return NEXT(llama_state_seq_set_data_ext)(ctx, data, size, seq, flags);
  }
  return SetState(ctx, *c, seq, data, size);
}

size_t FileSize(const char* path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<size_t>(size);
}

HOOK(size_t, llama_state_seq_save_file, llama_context* ctx, const char* path,
     llama_seq_id seq, const llama_token* tokens, size_t n_tokens) {
  Context* const c = Find(ctx);
  if (c == nullptr) {
    return NEXT(llama_state_seq_save_file)(ctx, path, seq, tokens, n_tokens);
  }
  const Inside guard;
  if (kvevict_llama_save(c->kv, seq, path, tokens, n_tokens) == KVEVICT_OK) {
    return FileSize(path);
  }
  if (!AnyEvicted(*c, seq)) {
    return NEXT(llama_state_seq_save_file)(ctx, path, seq, tokens, n_tokens);
  }
  Say("seq ", seq, " is not saved: ", kvevict_llama_last_error_message());
  return 0;
}

bool IsSession(const char* path) {
  char magic[8] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::memcmp(magic, "KVELLAMA", sizeof magic) == 0;
}

HOOK(size_t, llama_state_seq_load_file, llama_context* ctx, const char* path,
     llama_seq_id seq, llama_token* tokens, size_t capacity, size_t* n_tokens) {
  Context* const c = Find(ctx);
  if (c == nullptr) {
    return NEXT(llama_state_seq_load_file)(ctx, path, seq, tokens, capacity,
                                           n_tokens);
  }
  const Inside guard;
  for (Sequence& s : Of(*c, seq)) s = {};
  if (!IsSession(path)) {
    const size_t n = NEXT(llama_state_seq_load_file)(ctx, path, seq, tokens,
                                                     capacity, n_tokens);
    kvevict_llama_invalidate(c->kv, seq);
    return n;
  }
  if (kvevict_llama_load(c->kv, seq, path, tokens, capacity, n_tokens) !=
      KVEVICT_OK) {
    Say("seq ", seq, " is not loaded: ", kvevict_llama_last_error_message());
    return 0;
  }
  LearnExactFrom(*c, seq);
  return FileSize(path);
}

// Refuses states of all sequences at once, which contain nothing about
// evictions.
bool RefusesState(const llama_context* ctx) {
  Context* const c = Find(ctx);
  if (c == nullptr || !AnyEvicted(*c, -1)) return false;
  if (!c->refused_state) {
    Say("the state of a context with an evicted sequence is not saved as a "
        "whole; those of its sequences are");
  }
  c->refused_state = true;
  return true;
}

void StateWasSet(const llama_context* ctx) {
  Context* const c = Find(ctx);
  if (c == nullptr) return;
  const Inside guard;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    c->sequences[i] = {};
    kvevict_llama_invalidate(c->kv, static_cast<llama_seq_id>(i));
  }
}

HOOK(size_t, llama_state_get_data, llama_context* ctx, uint8_t* out,
     size_t size) {
  return RefusesState(ctx) ? 0 : NEXT(llama_state_get_data)(ctx, out, size);
}
HOOK(size_t, llama_state_set_data, llama_context* ctx, const uint8_t* data,
     size_t size) {
  StateWasSet(ctx);
  return NEXT(llama_state_set_data)(ctx, data, size);
}
HOOK(bool, llama_state_save_file, llama_context* ctx, const char* path,
     const llama_token* tokens, size_t n_tokens) {
  return !RefusesState(ctx) &&
         NEXT(llama_state_save_file)(ctx, path, tokens, n_tokens);
}
HOOK(bool, llama_state_load_file, llama_context* ctx, const char* path,
     llama_token* tokens, size_t capacity, size_t* n_tokens) {
  StateWasSet(ctx);
  return NEXT(llama_state_load_file)(ctx, path, tokens, capacity, n_tokens);
}

}  // namespace kvevict::llama_preload
