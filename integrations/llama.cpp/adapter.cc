#include "adapter.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "error.h"
#include "own_scores.h"

using kvevict::llama::BatchRow;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::QueryRows;
using kvevict::llama::ReadTensor;
using kvevict::llama::Sequence;

namespace {

// llama.cpp allocates cells in multiples of so many.
constexpr uint32_t kCellPadding = 256;

// Queries kept beside a window, so that a few rejected tokens leave a whole one.
constexpr uint32_t kSpareQueries = 16;

kvevict_policy ParsePolicy(const char* text) {
  if (text == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "policy is NULL");
  }
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  Check(kvevict_policy_parse(text, &policy));
  const auto refuse = [&](const char* what) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "policy \"", text, "\": ", what);
  };
  if (policy.layer_split != KVEVICT_LAYER_SPLIT_UNIFORM) {
    refuse(
        "layers would keep different numbers of tokens, and llama.cpp has one "
        "list of cells for all; split=uniform is held");
  }
  if (policy.head_split != KVEVICT_HEAD_SPLIT_EQUAL) {
    refuse(
        "heads would keep different numbers of tokens, and llama.cpp has one "
        "list of cells for all; heads=equal is held");
  }
  if (policy.rotate != 0) {
    refuse("llama.cpp goes on counting positions; rotate=no is held");
  }
  return policy;
}

uint32_t QueryRowsOf(const kvevict_policy& policy, uint32_t asked) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(&policy, KVEVICT_INPUT_QUERIES, &need));
  if (need == KVEVICT_NEED_NONE) return 0;
  return std::max(asked, policy.obs_window + kSpareQueries);
}

}  // namespace

kvevict_llama::kvevict_llama(const char* policy,
                             const kvevict_llama_options& options)
    : policy_(ParsePolicy(policy)),
      query_rows_(QueryRowsOf(policy_, options.query_rows)),
      context_(options.context) {
  if (context_ == nullptr) {
    kvevict_context_options defaults = KVEVICT_CONTEXT_OPTIONS_INIT;
    kvevict_context* context = nullptr;
    Check(kvevict_context_create(&defaults, &context));
    own_context_.reset(context);
    context_ = context;
  }
}

// ---- What graphs tell -----------------------------------------------------------

void kvevict_llama::Chain(ggml_backend_sched_eval_callback callback,
                          void* user_data) {
  chained_ = callback;
  chained_data_ = user_data;
}

bool kvevict_llama::Eval(ggml_tensor* node, bool ask) {
  if (ask) {
    asked_ = ctx_ != nullptr && observer_.Ask(node, query_rows_ > 0);
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
                  : "tokens were decoded that kvevict_llama_batch() has not "
                    "announced";
        }
        rows_.clear();
        return;
      }
      seq = batch_[batch_next_++];
    }
    if (seq < 0 || static_cast<size_t>(seq) >= sequences_.size()) continue;
    Sequence& s = sequences_[static_cast<size_t>(seq)];
    const int64_t position = row.position < 0 ? s.next : row.position;
    AddToken(s, position, cell);
    rows_.push_back({seq, static_cast<uint32_t>(position), 0});
  }
  // How many rows push each one out again.
  for (size_t s = 0; s < sequences_.size(); ++s) {
    uint32_t later = 0;
    for (size_t r = rows_.size(); r-- > 0;) {
      if (static_cast<size_t>(rows_[r].seq) == s) rows_[r].later = later++;
    }
  }
}

void kvevict_llama::OnQueries(size_t layer, const ggml_tensor* q) {
  const auto [head_dim, tokens, heads, streams] = q->ne;
  if (q->type != GGML_TYPE_F32 ||
      static_cast<size_t>(tokens * streams) != rows_.size()) {
    return;
  }
  const auto index = static_cast<size_t>(observer_.layers()[layer].shape.index);
  const size_t row_bytes = static_cast<size_t>(head_dim) * sizeof(float);
  const bool packed = q->nb[2] == row_bytes;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const RowOwner& row = rows_[r];
    if (row.later >= query_rows_) continue;
    Sequence& s = sequences_[static_cast<size_t>(row.seq)];
    if (s.queries.size() <= index) s.queries.resize(index + 1);
    float* out = s.queries[index].Append(row.position, query_rows_,
                                         static_cast<size_t>(head_dim * heads));
    const size_t at = r / tokens * q->nb[3] + r % tokens * q->nb[1];
    if (packed) {
      ReadTensor(q, out, at, row_bytes * static_cast<size_t>(heads));
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      ReadTensor(q, out + h * head_dim, at + h * q->nb[2], row_bytes);
    }
  }
}

// ---- Sequences ------------------------------------------------------------------

void kvevict_llama::Forget(Sequence& s) {
  s.next = s.n_cells = s.evicted_at = 0;
  s.in_order = true;
  s.placed = false;
  s.unfit.clear();
  for (QueryRows& rows : s.queries) rows.TakeBack(0);
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
    s.unfit = "tokens between evicted ones were removed";
  }
  s.next = position;
  for (QueryRows& rows : s.queries) rows.TakeBack(position);
  uint32_t known = 0;
  if (s.handle != nullptr && s.unfit.empty()) {
    kvevict_sequence_logical_length(s.handle.get(), &known);
    if (known > position && kvevict_sequence_trim(s.handle.get(), position,
                                                  nullptr) != KVEVICT_OK) {
      s.unfit = kvevict_last_error_message();
    }
  }
}

void kvevict_llama::AddToken(Sequence& s, int64_t position, int64_t cell) {
  if (position == 0) {
    Forget(s);
  } else if (position < s.next) {
    TakeBack(s, static_cast<uint32_t>(position));
  }
  if (position > s.next) {
    s.unfit = "its positions do not follow on";
    s.next = static_cast<uint32_t>(position);
  }
  if (cell != s.n_cells) s.in_order = false;
  s.placed = true;
  ++s.n_cells;
  ++s.next;
}

void kvevict_llama::Attach(llama_context* ctx) {
  if (ctx == nullptr) Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "ctx is NULL");
  if (llama_get_memory(ctx) == nullptr) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "the model has no cache");
  }
  const llama_model* model = llama_get_model(ctx);
  ctx_ = ctx;
  recurrent_ = llama_model_is_hybrid(model) || llama_model_is_recurrent(model);
  windowed_ = llama_model_n_swa(model) > 0;
  n_seq_max_ = llama_n_seq_max(ctx);
  observer_.Reset();
  sequences_.clear();
  sequences_.resize(n_seq_max_);
  batch_.clear();
  rows_.clear();
  shapes_.clear();
  plan_.reset();
}

void kvevict_llama::SetBatch(const llama_batch& batch) {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  batch_.clear();
  batch_positions_.clear();
  batch_next_ = 0;
  if (n_seq_max_ == 1) return;
  // With a stream for each sequence nothing of this is read.
  for (int32_t i = 0; i < batch.n_tokens; ++i) {
    if (batch.seq_id != nullptr && batch.n_seq_id != nullptr &&
        batch.n_seq_id[i] != 1) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "token ", i, " belongs to ",
           batch.n_seq_id[i], " sequences, whose cells would be shared");
    }
    batch_.push_back(batch.seq_id == nullptr ? 0 : batch.seq_id[i][0]);
    if (batch.pos != nullptr) batch_positions_.push_back(batch.pos[i]);
  }
}

Sequence& kvevict_llama::Sync(llama_seq_id seq) {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  if (seq < 0 || static_cast<uint32_t>(seq) >= n_seq_max_) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, " is not in [0, ",
         n_seq_max_, ")");
  }
  llama_synchronize(ctx_);
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  const auto next = static_cast<uint32_t>(
      llama_memory_seq_pos_max(llama_get_memory(ctx_), seq) + 1);
  if (next == 0) Forget(s);
  // A tail that was removed looks like a shift that llama.cpp has put off until then.
  if (next < s.next && s.unfit.empty()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, ": of ", s.next,
         " tokens decoded llama.cpp's positions reach ", next,
         "; take tokens back by kvevict_llama_trim(), or decode one first");
  }
  if (next > s.next && s.unfit.empty()) {
    s.unfit = "it has tokens that were not decoded here";
  }
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

// ---- Layers ---------------------------------------------------------------------

// Places, in the observer's list, of the layers whose cache keeps every token.
std::vector<size_t> kvevict_llama::FullLayers(llama_seq_id seq) {
  const std::vector<Layer>& layers = observer_.layers();
  std::vector<size_t> first, second;
  const ggml_tensor* cells = nullptr;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].shape.n_kv_heads == 0 || layers[i].cells == nullptr) {
      continue;
    }
    if (cells == nullptr) cells = layers[i].cells;
    (layers[i].cells == cells ? first : second).push_back(i);
  }
  if (second.empty()) return first;
  // Layers with a window have cells of their own, and mostly fewer of them.
  const auto n_cells = [&](const std::vector<size_t>& group) {
    return layers[group.front()].k->ne[1];
  };
  if (n_cells(first) != n_cells(second)) {
    return n_cells(first) > n_cells(second) ? first : second;
  }
  // A state begins with the layers that keep everything.
  Bytes bytes = FetchState(seq);
  for (const std::vector<size_t>& group : {first, second}) {
    std::vector<LayerShape> shapes;
    for (const size_t i : group) shapes.push_back(layers[i].shape);
    const auto state = State::Parse(bytes.span(), shapes, PartialBytes(seq));
    if (!state || state->n_cells() == 0) continue;
    const auto* row =
        reinterpret_cast<const uint8_t*>(state->View(shapes.front(), 0).k.data);
    const Layer& layer = layers[group.front()];
    std::vector<uint8_t> cell(layer.shape.k.row_bytes);
    for (int64_t c = 0; c < layer.k->ne[1] * layer.k->ne[2]; ++c) {
      ReadTensor(layer.k, cell.data(), c * cell.size(), cell.size());
      if (std::memcmp(cell.data(), row, cell.size()) == 0) return group;
    }
  }
  Fail(KVEVICT_ERROR_UNSUPPORTED,
       "the cache has a form that is not known: none of its layers is where a "
       "state begins");
}

void kvevict_llama::MakePlan(llama_seq_id seq) {
  const std::vector<Layer>& layers = observer_.layers();
  const std::vector<size_t> full = FullLayers(seq);
  if (full.empty()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "no layer that keeps all tokens has been seen: llama_decode() comes "
         "first, in a context with kvevict_llama_install()");
  }
  std::vector<LayerShape> shapes;
  for (const size_t i : full) shapes.push_back(layers[i].shape);
  AdoptLayers(std::move(shapes),
              static_cast<uint32_t>(layers[full.front()].k->ne[1]));
}

void kvevict_llama::AdoptLayers(std::vector<LayerShape> shapes,
                                uint32_t max_tokens) {
  if (max_tokens == 0) {
    const uint32_t n = llama_n_ctx_seq(ctx_);
    max_tokens = (n + kCellPadding - 1) / kCellPadding * kCellPadding;
  }
  std::vector<kvevict_layer_geometry> layers;
  for (const LayerShape& shape : shapes) {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = shape.n_q_heads;
    layer.n_kv_heads = shape.n_kv_heads;
    layer.k_dtype = shape.k.dtype();
    layer.v_dtype = shape.v.dtype();
    if (layer.k_dtype != KVEVICT_DTYPE_OPAQUE) {
      layer.k_head_dim = shape.k.head_dim;
    }
    if (shape.v.head_dim == 0) {
      layer.v_dtype = KVEVICT_DTYPE_F32;
    } else if (layer.v_dtype != KVEVICT_DTYPE_OPAQUE) {
      layer.v_head_dim = shape.v.head_dim;
    }
    layer.softmax_scale = shape.scale;
    layers.push_back(layer);
  }
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = static_cast<uint32_t>(layers.size());
  geometry.max_tokens = max_tokens;
  geometry.layers = layers.data();
  geometry.layers_len = layers.size();
  own_scores_ = query_rows_ > 0 && std::any_of(shapes.begin(), shapes.end(),
                                               kvevict::llama::NeedsOwnScores);
  const kvevict_policy policy =
      own_scores_ ? kvevict::llama::ByOwnScores(policy_) : policy_;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context_, &geometry, &policy, nullptr, &plan));
  plan_.reset(plan);
  shapes_ = std::move(shapes);
}

uint32_t kvevict_llama::LayerIndex(uint32_t i) const {
  if (i >= shapes_.size()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "index ", i, " >= ", shapes_.size(),
         " layers that are evicted");
  }
  return static_cast<uint32_t>(shapes_[i].index);
}

const kvevict_sequence* kvevict_llama::Handle(llama_seq_id seq) {
  return Sync(seq).handle.get();
}

void kvevict_llama::EndPrompt(llama_seq_id seq) {
  Check(kvevict_sequence_end_prompt(Sync(seq).handle.get()));
}

void kvevict_llama::Trim(llama_seq_id seq, uint32_t n_tokens) {
  Sequence& s = Sync(seq);
  CheckFit(s, seq);
  if (n_tokens >= s.next) {
    if (n_tokens == s.next) return;
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "n_tokens ", n_tokens,
         " > logical length ", s.next);
  }
  uint32_t exact = 0;
  Check(kvevict_sequence_exact_prefix(s.handle.get(), &exact));
  if (n_tokens > exact && n_tokens < s.evicted_at) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "n_tokens ", n_tokens,
         ": exact are lengths up to ", exact, " and from ", s.evicted_at,
         " on; tokens between them were evicted");
  }
  if (!llama_memory_seq_rm(llama_get_memory(ctx_), seq,
                           static_cast<llama_pos>(n_tokens), -1)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq,
         ": llama.cpp cannot take tokens back to length ", n_tokens);
  }
  TakeBack(s, n_tokens);
}
