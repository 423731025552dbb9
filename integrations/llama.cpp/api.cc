// The C functions. They check arguments and turn failures into a status and a
// sentence.
#include <string>

#include "adapter.h"
#include "error.h"
#include "guard.h"

using kvevict::llama::Fail;
using kvevict::llama::Guard;

namespace {

thread_local std::string last_message;

void NonNull(const void* pointer, const char* name) {
  if (pointer == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, name, " is NULL");
  }
}

template <typename Struct>
void CheckSize(const Struct& s, const char* name) {
  if (s.struct_size != sizeof s) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, name, ".struct_size ", s.struct_size,
         " != ", sizeof s);
  }
}

}  // namespace

void kvevict::llama::Remember(const char* message) noexcept {
  try {
    last_message = message;
  } catch (...) {
    last_message.clear();
  }
}

const char* kvevict_llama_last_error_message(void) noexcept {
  return last_message.c_str();
}

kvevict_status kvevict_llama_create(const char* policy,
                                    const kvevict_llama_options* options,
                                    kvevict_llama** out) noexcept {
  return Guard([&] {
    NonNull(out, "out");
    const kvevict_llama_options defaults = KVEVICT_LLAMA_OPTIONS_INIT;
    if (options == nullptr) options = &defaults;
    CheckSize(*options, "options");
    *out = new kvevict_llama(policy, *options);
  });
}

void kvevict_llama_destroy(kvevict_llama* kv) noexcept { delete kv; }

bool kvevict_llama_eval(ggml_tensor* tensor, bool ask, void* kv) noexcept {
  bool result = true;
  // Without memory for a row it is not recorded, which an eviction notices.
  if (Guard([&] {
        result = static_cast<kvevict_llama*>(kv)->Eval(tensor, ask);
      }) != KVEVICT_OK) {
    return !ask;
  }
  return result;
}

void kvevict_llama_chain(kvevict_llama* kv,
                         ggml_backend_sched_eval_callback callback,
                         void* user_data) noexcept {
  if (kv != nullptr) kv->Chain(callback, user_data);
}

kvevict_status kvevict_llama_attach(kvevict_llama* kv,
                                    llama_context* ctx) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    kv->Attach(ctx);
  });
}

kvevict_status kvevict_llama_batch(kvevict_llama* kv,
                                   const llama_batch* batch) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(batch, "batch");
    kv->SetBatch(*batch);
  });
}

kvevict_status kvevict_llama_tokens(kvevict_llama* kv, const llama_seq_id* seqs,
                                    const llama_pos* positions,
                                    size_t n_tokens) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    if (n_tokens > 0) NonNull(seqs, "seqs");
    kv->Announce({seqs, n_tokens}, positions);
  });
}

kvevict_status kvevict_llama_evict(kvevict_llama* kv, llama_seq_id seq,
                                   const kvevict_llama_evict_options* options,
                                   kvevict_llama_report* report) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    const kvevict_llama_evict_options defaults =
        KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
    if (options == nullptr) options = &defaults;
    CheckSize(*options, "options");
    if (report != nullptr) CheckSize(*report, "report");
    kvevict_llama_report result = KVEVICT_LLAMA_REPORT_INIT;
    kv->Evict(seq, *options, result);
    if (report != nullptr) *report = result;
  });
}

kvevict_status kvevict_llama_copy(kvevict_llama* kv, llama_seq_id from,
                                  llama_seq_id to) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    kv->Copy(from, to);
  });
}

kvevict_status kvevict_llama_end_prompt(kvevict_llama* kv,
                                        llama_seq_id seq) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    kv->EndPrompt(seq);
  });
}

kvevict_status kvevict_llama_evicted_at(const kvevict_llama* kv,
                                        llama_seq_id seq,
                                        uint32_t* out_length) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(out_length, "out_length");
    *out_length = kv->EvictedAt(seq);
  });
}

kvevict_status kvevict_llama_invalidate(kvevict_llama* kv,
                                        llama_seq_id seq) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    kv->Invalidate(seq);
  });
}

kvevict_status kvevict_llama_trim_to(kvevict_llama* kv, llama_seq_id seq,
                                     uint32_t new_length) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    kv->Trim(seq, new_length);
  });
}

kvevict_status kvevict_llama_sequence(kvevict_llama* kv, llama_seq_id seq,
                                      const kvevict_sequence** out) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(out, "out");
    *out = kv->Handle(seq);
  });
}

kvevict_status kvevict_llama_layer(const kvevict_llama* kv, uint32_t index,
                                   uint32_t* out_layer) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(out_layer, "out_layer");
    *out_layer = kv->LayerIndex(index);
  });
}

kvevict_status kvevict_llama_calibrate(
    kvevict_llama* kv, uint32_t has_covariances,
    const kvevict_calibration** out) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(out, "out");
    *out = kv->Calibrate(has_covariances);
  });
}

kvevict_status kvevict_llama_save(kvevict_llama* kv, llama_seq_id seq,
                                  const char* path, const llama_token* tokens,
                                  size_t n_tokens) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(path, "path");
    if (n_tokens > 0) NonNull(tokens, "tokens");
    kv->Save(seq, path, {tokens, n_tokens});
  });
}

kvevict_status kvevict_llama_load(kvevict_llama* kv, llama_seq_id seq,
                                  const char* path, llama_token* tokens,
                                  size_t tokens_capacity,
                                  size_t* out_n_tokens) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(path, "path");
    if (tokens_capacity > 0) NonNull(tokens, "tokens");
    const size_t n = kv->Load(seq, path, {tokens, tokens_capacity});
    if (out_n_tokens != nullptr) *out_n_tokens = n;
  });
}

kvevict_status kvevict_llama_save_data(kvevict_llama* kv, llama_seq_id seq,
                                       const llama_token* tokens,
                                       size_t n_tokens, void* data,
                                       size_t capacity,
                                       size_t* out_n_bytes) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(out_n_bytes, "out_n_bytes");
    if (n_tokens > 0) NonNull(tokens, "tokens");
    if (capacity > 0) NonNull(data, "data");
    *out_n_bytes = kv->SaveData(seq, {tokens, n_tokens},
                                {static_cast<uint8_t*>(data), capacity});
  });
}

kvevict_status kvevict_llama_load_data(kvevict_llama* kv, llama_seq_id seq,
                                       const void* data, size_t n_bytes,
                                       llama_token* tokens,
                                       size_t tokens_capacity,
                                       size_t* out_n_tokens) noexcept {
  return Guard([&] {
    NonNull(kv, "kv");
    NonNull(data, "data");
    if (tokens_capacity > 0) NonNull(tokens, "tokens");
    const size_t n =
        kv->LoadData(seq, "data", {static_cast<const uint8_t*>(data), n_bytes},
                     {tokens, tokens_capacity});
    if (out_n_tokens != nullptr) *out_n_tokens = n;
  });
}
