// Sequences that are copies. In a unified cache they share cells. With one
// stream per sequence llama.cpp copies their rows before it computes the next
// graph.
#include <algorithm>

#include "adapter.h"
#include "error.h"
#include "kvevict/batch.h"

using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::Sequence;
using kvevict::llama::State;
using kvevict::llama::StateBytes;

void kvevict_llama::Copy(llama_seq_id from, llama_seq_id to) {
  CheckSeq(to);
  Sequence& source = Verify(from);
  if (from == to) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "from and to are both ", from);
  }
  if (source.next == 0) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "from: seq ", from,
         " has 0 tokens < 1; llama_memory_seq_rm() empties seq ", to);
  }
  CheckRowsAreThere(from);
  CheckNoneCopies(to);
  kvevict_sequence* handle = nullptr;
  Check(kvevict_sequence_fork(source.handle.get(), nullptr, &handle, nullptr));
  Sequence copy;
  copy.handle.reset(handle);
  copy.next = source.next;
  copy.n_cells = source.n_cells;
  copy.evicted_at = source.evicted_at;
  copy.in_order = source.in_order;
  copy.placed = source.placed;
  copy.queries = source.queries;
  copy.moments = CopyMoments(source);
  copy.awaits_rows = n_streams_ > 1;
  copy.rows_from = from;
  const llama_memory_t memory = llama_get_memory(ctx_);
  if (!llama_memory_seq_rm(memory, to, -1, -1)) {
    Fail(KVEVICT_ERROR_INTERNAL, "seq ", to, ": llama_memory_seq_rm() failed");
  }
  llama_memory_seq_cp(memory, from, to, -1, -1);
  sequences_[static_cast<size_t>(to)] = std::move(copy);
}

bool kvevict_llama::OthersHaveTokens(llama_seq_id seq) const {
  for (uint32_t other = 0; other < n_seq_max_; ++other) {
    const auto id = static_cast<llama_seq_id>(other);
    if (id != seq && NextOf(id) > 0) return true;
  }
  return false;
}

bool kvevict_llama::MayAwaitRows(llama_seq_id seq) const {
  const Sequence& s = sequences_[static_cast<size_t>(seq)];
  return s.awaits_rows || NextOf(seq) != s.computed_to;
}

void kvevict_llama::CheckRowsAreThere(llama_seq_id seq) const {
  if (n_streams_ <= 1 || !MayAwaitRows(seq)) return;
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq,
       " is, or was, a copy since the last llama_decode(): llama.cpp may not "
       "have copied its rows yet; decode a token, of any sequence, first");
}

void kvevict_llama::CheckNoneCopies(llama_seq_id seq) const {
  if (n_streams_ <= 1) return;
  for (uint32_t i = 0; i < n_seq_max_; ++i) {
    const auto other = static_cast<llama_seq_id>(i);
    if (other == seq || NextOf(other) == 0 || !MayAwaitRows(other)) continue;
    // A copy that was made here, of another one.
    const Sequence& s = sequences_[i];
    const bool known = s.unfit.empty() && s.next == NextOf(other);
    if (known && s.awaits_rows && s.rows_from != seq) continue;
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", other,
         " has changed since the last llama_decode(): llama.cpp may have yet "
         "to copy rows of seq ",
         seq, " to it; decode a token, of any sequence, first");
  }
}

void kvevict_llama::CheckRoomBeside(llama_seq_id seq, const State& state,
                                    uint32_t n_cells) const {
  if (n_streams_ != 1 || !OthersHaveTokens(seq)) return;
  // The states of single sequences count a shared cell once each; the state of
  // all counts it once.
  const uint64_t per_cell = state.BytesPerCell();
  const uint64_t header = StateBytes(state.format(), shapes_, 1, 0);
  uint64_t n_counted = 0;
  for (uint32_t s = 0; s < n_seq_max_; ++s) {
    const uint64_t bytes =
        state_.FullBytes(static_cast<llama_seq_id>(s), state);
    if (bytes > header) n_counted += (bytes - header) / per_cell;
  }
  constexpr uint64_t kIdBytes = sizeof(llama_seq_id);
  const uint64_t all_bytes = state_.FullBytes(-1, state);
  const uint64_t n_used =
      (all_bytes - header - n_counted * kIdBytes) / (per_cell - kIdBytes);
  const uint64_t n_shared =
      std::min(n_counted - n_used, uint64_t{state.n_cells()});
  const auto n_all = uint64_t{llama_n_ctx(ctx_)};
  const uint64_t n_left = n_used - (state.n_cells() - n_shared);
  if (n_left + n_cells <= n_all) return;
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, ": other sequences share ",
       n_shared, " of its cells, which stay theirs, so that ", n_cells,
       " cells beside them need n_ctx ", n_left + n_cells, " > ", n_all,
       "; remove sequences, evict it before it is copied, or into a target");
}
