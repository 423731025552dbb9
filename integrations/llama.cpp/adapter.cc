#include "adapter.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "error.h"
#include "kvevict/batch.h"
#include "kvevict/experimental.h"

using kvevict::llama::BatchRow;
using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::FindRotation;
using kvevict::llama::kRemedy;
using kvevict::llama::Layer;
using kvevict::llama::ParsePolicy;
using kvevict::llama::Policy;
using kvevict::llama::QueryRows;
using kvevict::llama::Sequence;

namespace {

constexpr char kRemovedBeforeEviction[] =
    "tokens from before its last eviction were removed, but each layer and "
    "head has kept different ones of them";
constexpr char kLostWindow[] =
    "its layers with a sliding window had lost tokens that it needs again "
    "after others were removed";

// Graphs are read with the enumerators that ggml's headers had when this was
// compiled.
void CheckHeaders() {
  constexpr struct {
    ggml_op op;
    const char* name;
  } kOps[] = {
      {GGML_OP_DUP, "DUP"},
      {GGML_OP_CPY, "CPY"},
      {GGML_OP_CONT, "CONT"},
      {GGML_OP_SCALE, "SCALE"},
      {GGML_OP_MUL_MAT, "MUL_MAT"},
      {GGML_OP_SET_ROWS, "SET_ROWS"},
      {GGML_OP_SOFT_MAX, "SOFT_MAX"},
      {GGML_OP_ROPE, "ROPE"},
      {GGML_OP_UNARY, "UNARY"},
      {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"},
  };
  constexpr char kRemedy[] =
      "; compile it with the headers of the llama.cpp that it runs with";
  for (const auto& [op, name] : kOps) {
    if (std::string_view(ggml_op_name(op)) == name) continue;
    Fail(KVEVICT_ERROR_UNSUPPORTED,
         "the adapter's ggml.h is of another version: operation ",
         static_cast<int>(op), " is ", name, " there and ", ggml_op_name(op),
         " in the loaded ggml", kRemedy);
  }
  // A tensor is allocated after an object: two sizes, a pointer, a type and
  // padding.
  constexpr size_t kObjectBytes = 2 * sizeof(size_t) + sizeof(void*) + 8;
  constexpr size_t kBytes = kObjectBytes + sizeof(ggml_tensor);
  if (ggml_tensor_overhead() != kBytes) {
    Fail(KVEVICT_ERROR_UNSUPPORTED,
         "the adapter's ggml.h is of another version: tensors take ", kBytes,
         " bytes there and ", ggml_tensor_overhead(), " in the loaded ggml",
         kRemedy);
  }
}

// Queries kept in addition to a window, so that a few rejected tokens leave a
// whole one.
constexpr uint32_t kSpareQueries = 16;

// The queries that score by attention sums, unless more are requested.
constexpr uint32_t kSumRows = 32;

std::vector<uint8_t> BytesOf(const kvevict_llama_options& options) {
  if ((options.calibration == nullptr) != (options.calibration_len == 0)) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "options.calibration is ",
         options.calibration == nullptr ? "" : "not ",
         "NULL, but options.calibration_len is ", options.calibration_len);
  }
  const auto* bytes = static_cast<const uint8_t*>(options.calibration);
  return {bytes, bytes + options.calibration_len};
}

// The number of last queries that score, for policies that define it.
uint32_t ScoringRows(const Policy& policy, uint32_t asked) {
  if (policy.n_query_rows == 0) return 0;
  constexpr uint32_t kMost = INT32_MAX - kSpareQueries;
  if (asked > kMost) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "options.query_rows ", asked, " > ",
         kMost);
  }
  return std::max(asked, policy.n_query_rows < KVEVICT_QUERY_ROWS_ALL
                             ? policy.n_query_rows
                             : kSumRows);
}

}  // namespace

kvevict_llama::kvevict_llama(const char* policy,
                             const kvevict_llama_options& options)
    : policy_(ParsePolicy(policy, options.calibration != nullptr)),
      saved_bytes_(BytesOf(options)),
      wants_moments_(saved_bytes_.empty() &&
                     policy_.Needs(KVEVICT_INPUT_QUERY_MEAN)),
      h2o_rows_(ScoringRows(policy_, options.query_rows)),
      query_rows_(h2o_rows_ > 0 ? h2o_rows_ + kSpareQueries : 0),
      context_(options.context) {
  if (context_ == nullptr) {
    kvevict_context_options defaults = KVEVICT_CONTEXT_OPTIONS_INIT;
    kvevict_context* context = nullptr;
    Check(kvevict_context_create(&defaults, &context));
    own_context_.reset(context);
    context_ = context;
  }
}

// ---- Graphs -----------------------------------------------------------------

void kvevict_llama::Chain(ggml_backend_sched_eval_callback callback,
                          void* user_data) {
  chained_ = callback;
  chained_data_ = user_data;
}

bool kvevict_llama::Eval(ggml_tensor* node, bool ask) {
  if (ask) {
    asked_ = ctx_ != nullptr && observer_.Ask(node);
    chained_asked_ = chained_ != nullptr && chained_(node, true, chained_data_);
    return asked_ || chained_asked_;
  }
  if (asked_) observer_.Computed(node);
  return !chained_asked_ || chained_(node, false, chained_data_);
}

void kvevict_llama::OnShift() {
  for (Sequence& s : sequences_) {
    if (s.next > 0) s.unfit = "its positions were shifted";
  }
}

void kvevict_llama::OnBatch(std::span<const BatchRow> rows,
                            const ggml_tensor* cache) {
  const auto n_streams = cache->ne[2];
  const auto stream_cells = cache->ne[1];
  n_streams_ = static_cast<uint32_t>(n_streams);
  const bool announced = n_streams == 1 && n_seq_max_ > 1;
  rows_.clear();
  for (const BatchRow& row : rows) {
    llama_seq_id seq = 0;
    int64_t cell = row.cell;
    if (n_streams > 1) {
      seq = static_cast<llama_seq_id>(cell / stream_cells);
      cell %= stream_cells;
    } else if (announced) {
      const bool expected = !recurrent_ && batch_next_ < batch_.size() &&
                            (row.position < 0 || batch_positions_.empty() ||
                             batch_positions_[batch_next_] == row.position);
      if (!expected) {
        for (Sequence& s : sequences_) {
          s.unfit =
              recurrent_
                  ? "a hybrid model with a unified cache of several sequences "
                    "does not tell whose tokens it decodes"
                  : "tokens were decoded without kvevict_llama_batch()";
        }
        rows_.clear();
        return;
      }
      seq = batch_[batch_next_++];
    }
    if (seq < 0 || static_cast<size_t>(seq) >= sequences_.size()) continue;
    Sequence& s = sequences_[static_cast<size_t>(seq)];
    const int64_t position = row.position < 0 ? s.next : row.position;
    if (position == s.next) CheckWitnesses(s);
    AddToken(seq, position, cell);
    rows_.push_back({seq, static_cast<uint32_t>(position), 0});
  }
  for (size_t s = 0; n_streams > 1 && s < sequences_.size(); ++s) {
    sequences_[s].computed_to = NextOf(static_cast<llama_seq_id>(s));
    sequences_[s].awaits_rows = false;
  }
  // Counts the later rows of the same sequence, which push a row out again.
  for (size_t s = 0; s < sequences_.size(); ++s) {
    uint32_t later = 0;
    for (size_t r = rows_.size(); r-- > 0;) {
      if (static_cast<size_t>(rows_[r].seq) == s) rows_[r].later = later++;
    }
    if (later > 0) MakeReady(sequences_[s]);
  }
}

bool kvevict_llama::WantsQueries(size_t layer, const ggml_tensor* q) {
  const Layer& from = observer_.layers()[layer];
  const auto index = static_cast<size_t>(from.shape.index);
  if (rotations_.size() <= index) rotations_.resize(index + 1);
  Rotation& rotation = rotations_[index];
  if (rotation.inv_freq.empty() && rotation.unknown.empty()) {
    rotation = FindRotation(q);
  }
  return query_rows_ > 0 || wants_moments_ || calibrated_ != nullptr ||
         (from.cache < witness_layers_.size() &&
          from.shape.index >= witness_layers_[from.cache]);
}

void kvevict_llama::OnQueries(size_t layer, const ggml_tensor* q) {
  TakeWitnesses(layer);
  const auto [head_dim, tokens, heads, streams] = q->ne;
  if (q->type != GGML_TYPE_F32 ||
      static_cast<size_t>(tokens * streams) != rows_.size()) {
    return;
  }
  const auto index = static_cast<size_t>(observer_.layers()[layer].shape.index);
  if (wants_moments_ || calibrated_ != nullptr) AddQueries(index, q);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const RowOwner& row = rows_[r];
    if (row.later >= query_rows_) continue;
    Sequence& s = sequences_[static_cast<size_t>(row.seq)];
    if (s.queries.size() <= index) s.queries.resize(index + 1);
    ReadRow(q, r,
            s.queries[index].Append(row.position, query_rows_,
                                    static_cast<size_t>(head_dim * heads)));
  }
}

// ---- Sequences --------------------------------------------------------------

void kvevict_llama::Forget(Sequence& s) {
  s.next = s.n_cells = s.evicted_at = 0;
  s.in_order = true;
  s.placed = false;
  s.computed_to = 0;
  ForgetWitnesses(s);
  s.state_key.clear();
  s.unfit.clear();
  for (QueryRows& rows : s.queries) rows.TakeBack(0);
  s.moments.clear();
  if (s.handle != nullptr) kvevict_sequence_reset(s.handle.get(), nullptr);
}

void kvevict_llama::TakeBack(Sequence& s, uint32_t position) {
  if (position == 0) return Forget(s);
  uint32_t exact = 0;
  if (s.handle != nullptr) {
    kvevict_sequence_exact_prefix(s.handle.get(), &exact);
  }
  if (position >= s.evicted_at) {
    s.n_cells -= s.next - position;
  } else if (position <= exact) {
    s.n_cells = position;
    s.evicted_at = 0;
  } else {
    s.unfit = kRemovedBeforeEviction;
  }
  s.next = position;
  if (position <= s.witnessed) ForgetWitnesses(s);
  if (position <= s.state_last) s.state_key.clear();
  for (QueryRows& rows : s.queries) rows.TakeBack(position);
  uint32_t known = 0;
  if (s.handle != nullptr && s.unfit.empty()) {
    kvevict_sequence_logical_length(s.handle.get(), &known);
    if (known > position && kvevict_sequence_trim_to(s.handle.get(), position,
                                                     nullptr) != KVEVICT_OK) {
      s.unfit = kvevict_last_error_message();
    }
  }
}

void kvevict_llama::AddToken(llama_seq_id seq, int64_t position, int64_t cell) {
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  if (position == 0) {
    Forget(s);
  } else if (position < s.next) {
    TakeBack(s, static_cast<uint32_t>(position));
    // Checks that llama.cpp has not reused a cell that this length needs.
    if (HasLostWindow(seq, static_cast<uint32_t>(position))) {
      s.unfit = kLostWindow;
    }
  }
  if (position > s.next) {
    s.unfit =
        "its positions have a gap: it has tokens that were not decoded here; "
        "make copies by kvevict_llama_copy()";
    s.next = static_cast<uint32_t>(position);
  }
  if (cell != s.n_cells) s.in_order = false;
  s.placed = true;
  ++s.n_cells;
  ++s.next;
}

// If a sequence has outgrown its budget, prepares memory for the state of what
// will stay. Its first touch then is part of decoding, not of the eviction.
void kvevict_llama::MakeReady(const Sequence& s) {
  if (recurrent_ || windowed_) return;
  kvevict_resolved_policy tokens = {};
  tokens.struct_size = sizeof tokens;
  if (kvevict_policy_resolve(policy_.handle.get(), s.n_cells, &tokens) !=
          KVEVICT_OK ||
      tokens.budget >= s.n_cells) {
    return;
  }
  uint64_t of_cell = 0;
  for (const Layer& layer : observer_.layers()) {
    of_cell += layer.shape.k.row_bytes + layer.shape.v.row_bytes;
  }
  if (of_cell == 0) return;
  constexpr uint64_t kCellHeader = 24, kLayerHeader = 24, kHeader = 1 << 14;
  const uint64_t n_bytes = tokens.budget * (of_cell + kCellHeader) +
                           observer_.layers().size() * kLayerHeader + kHeader;
  try {
    kept_state_.ReserveTouched(n_bytes);
  } catch (const std::bad_alloc&) {
    // The eviction will ask again.
  }
}

void kvevict_llama::Attach(llama_context* ctx) {
  CheckHeaders();
  if (ctx == nullptr) Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "ctx is NULL");
  if (llama_get_memory(ctx) == nullptr) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "the model has no cache");
  }
  const llama_model* model = llama_get_model(ctx);
  ctx_ = ctx;
  state_ = kvevict::llama::ContextState(ctx);
  recurrent_ = llama_model_is_hybrid(model) || llama_model_is_recurrent(model);
  windowed_ = llama_model_n_swa(model) > 0;
  n_seq_max_ = llama_n_seq_max(ctx);
  n_streams_ = 0;
  witness_layers_ = {-1, -1};
  observer_.Reset();
  sequences_.clear();
  sequences_.resize(n_seq_max_);
  batch_.clear();
  rows_.clear();
  rotations_.clear();
  saved_.reset();
  calibrated_.reset();
  shapes_.clear();
  sinks_.clear();
  rope_factors_ = RopeFactors::kNone;
  plan_.reset();
}

void kvevict_llama::SetBatch(const llama_batch& batch) {
  const auto n = static_cast<size_t>(std::max(batch.n_tokens, 0));
  std::vector<llama_seq_id> seqs(n_seq_max_ > 1 ? n : 0, 0);
  for (size_t i = 0; batch.seq_id != nullptr && i < seqs.size(); ++i) {
    if (batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "token ", i, " belongs to ",
           batch.n_seq_id[i],
           " sequences, whose cells would be shared; decode it for one of them "
           "and copy that by kvevict_llama_copy()");
    }
    seqs[i] = batch.seq_id[i][0];
  }
  Announce(seqs, batch.pos);
}

// With one stream per sequence this is not used.
void kvevict_llama::Announce(std::span<const llama_seq_id> seqs,
                             const llama_pos* positions) {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  batch_.clear();
  batch_positions_.clear();
  batch_next_ = 0;
  if (n_seq_max_ == 1) return;
  batch_.assign(seqs.begin(), seqs.end());
  if (positions != nullptr) {
    batch_positions_.assign(positions, positions + seqs.size());
  }
}

void kvevict_llama::CheckSeq(llama_seq_id seq) const {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  if (seq < 0 || static_cast<uint32_t>(seq) >= n_seq_max_) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, " is not in [0, ",
         n_seq_max_, ")");
  }
}

void kvevict_llama::CheckFit(const Sequence& s, llama_seq_id seq) const {
  if (s.unfit.empty()) return;
  Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": ", s.unfit, kRemedy);
}

uint32_t kvevict_llama::NextOf(llama_seq_id seq) const {
  return static_cast<uint32_t>(
      llama_memory_seq_pos_max(llama_get_memory(ctx_), seq) + 1);
}

void kvevict_llama::Lose(llama_seq_id seq, const std::string& why) {
  Forget(sequences_[static_cast<size_t>(seq)]);
  Fail(KVEVICT_ERROR_INTERNAL, "sequence lost: seq ", seq, ": ", why);
}

Sequence& kvevict_llama::Update(llama_seq_id seq) {
  CheckSeq(seq);
  llama_synchronize(ctx_);
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  const uint32_t next = NextOf(seq);
  if (next == 0 && s.next > 0) {
    CheckAllIsGone(seq);
    Forget(s);
  }
  if (next > s.next && s.unfit.empty()) {
    s.unfit =
        "it has tokens that were not decoded here; make copies by "
        "kvevict_llama_copy()";
  }
  if (next == s.next) CheckWitnesses(s);
  if (plan_ == nullptr) MakePlan(seq);
  if (s.handle == nullptr) {
    kvevict_sequence* handle = nullptr;
    Check(kvevict_sequence_create(plan_.get(), &handle));
    s.handle.reset(handle);
  }
  uint32_t known = 0;
  Check(kvevict_sequence_logical_length(s.handle.get(), &known));
  if (s.unfit.empty() && s.next > known) {
    Check(kvevict_sequence_append(s.handle.get(), s.next - known, nullptr));
  }
  return s;
}

Sequence& kvevict_llama::Sync(llama_seq_id seq) {
  Sequence& s = Update(seq);
  CheckFit(s, seq);
  const uint32_t next = NextOf(seq);
  if (next >= s.next) return s;
  uint32_t exact = 0;
  Check(kvevict_sequence_exact_prefix(s.handle.get(), &exact));
  if (next > exact && next < s.evicted_at) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": ", kRemovedBeforeEviction,
         kRemedy);
  }
  CheckCells(s, seq);
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, ": of ", s.next,
       " tokens decoded llama.cpp's positions reach ", next,
       "; call kvevict_llama_trim_to() with length ", next);
}

Sequence& kvevict_llama::Verify(llama_seq_id seq) {
  Sequence& s = Sync(seq);
  CheckCells(s, seq);
  return s;
}

// A window that lost all its tokens looks like an empty sequence.
void kvevict_llama::CheckAllIsGone(llama_seq_id seq) const {
  if (!windowed_ || plan_ == nullptr) return;
  Bytes memory;
  const auto state = state_.TryParse(seq, state_.Fetch(seq, memory), shapes_);
  if (!state || state->n_cells() == 0) return;
  Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": ", kLostWindow, kRemedy);
}

// ---- Queries about sequences ------------------------------------------------

const kvevict_sequence* kvevict_llama::Handle(llama_seq_id seq) {
  return Verify(seq).handle.get();
}

void kvevict_llama::EndPrompt(llama_seq_id seq) {
  Check(kvevict_sequence_end_prompt(Verify(seq).handle.get()));
}

void kvevict_llama::Invalidate(llama_seq_id seq) {
  CheckSeq(seq);
  sequences_[static_cast<size_t>(seq)].unfit =
      "kvevict_llama_invalidate() was called";
}

uint32_t kvevict_llama::EvictedAt(llama_seq_id seq) const {
  CheckSeq(seq);
  return sequences_[static_cast<size_t>(seq)].evicted_at;
}

void kvevict_llama::Trim(llama_seq_id seq, uint32_t new_length) {
  Sequence& s = Update(seq);
  CheckFit(s, seq);
  CheckCells(s, seq);
  if (new_length > s.next) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "new_length ", new_length,
         " > logical length ", s.next);
  }
  const uint32_t next = NextOf(seq);
  if (new_length > next) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "new_length ", new_length,
         ": llama.cpp's positions reach ", next);
  }
  if (new_length == s.next) return;
  uint32_t exact = 0;
  Check(kvevict_sequence_exact_prefix(s.handle.get(), &exact));
  if (new_length > exact && new_length < s.evicted_at) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "new_length ", new_length,
         ": exact are lengths up to ", exact, " and from ", s.evicted_at,
         " on; tokens between them were evicted");
  }
  if (new_length > 0 && HasLostWindow(seq, new_length)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "new_length ", new_length,
         ": layers with a sliding window of ",
         llama_model_n_swa(llama_get_model(ctx_)),
         " hold tokens from position ",
         llama_memory_seq_pos_min(llama_get_memory(ctx_), seq),
         " on, and have lost earlier ones that this length needs; trim to 0 "
         "and decode it anew, or load a state of that length");
  }
  if (!llama_memory_seq_rm(llama_get_memory(ctx_), seq,
                           static_cast<llama_pos>(new_length), -1)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq,
         ": llama.cpp cannot take tokens back to length ", new_length);
  }
  TakeBack(s, new_length);
  s.computed_to = std::min(s.computed_to, new_length);
}

bool kvevict_llama::HasLostWindow(llama_seq_id seq, uint32_t length) const {
  if (!windowed_) return false;
  const int64_t n_swa = llama_model_n_swa(llama_get_model(ctx_));
  const int64_t first = std::max<int64_t>(0, length - n_swa + 1);
  const llama_pos held = llama_memory_seq_pos_min(llama_get_memory(ctx_), seq);
  return held < 0 || held > first;
}
