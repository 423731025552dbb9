// Batches: what a program decodes, as llama_batch or, from llama.cpp 0.7 on, as
// llama_batch_ext, which does not tell what has been added to it.
#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>

#include "evictions.h"
#include "hook.h"

namespace kvevict::llama_preload {

using Batch = void;  // llama_batch_ext
struct Embedding {   // llama_embd
  const float* data;
  size_t n_rows, n_embd;
};

namespace {

std::mutex mutex;
std::map<const Batch*, Rows> extended_batches;

void Forget(const Batch* batch) {
  if (inside) return;
  const std::lock_guard lock(mutex);
  extended_batches.erase(batch);
}

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

}  // namespace

HOOK(int32_t, llama_decode, llama_context* ctx, llama_batch batch) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_decode)(ctx, batch);
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
  Forget(batch);
  NEXT(llama_batch_ext_clear)(batch);
}
HOOK(void, llama_batch_ext_free, Batch* batch) {
  Forget(batch);
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

}  // namespace kvevict::llama_preload
