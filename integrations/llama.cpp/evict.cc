// Evictions: on the cache's own tensors, or in a copy of a sequence's state.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "adapter.h"
#include "error.h"
#include "own_scores.h"

using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::IsStateSize;
using kvevict::llama::Layer;
using kvevict::llama::LayerShape;
using kvevict::llama::QueryRows;
using kvevict::llama::Sequence;
using kvevict::llama::SequenceHandle;
using kvevict::llama::State;
using kvevict::llama::WindowScores;

namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

uint32_t StoredLength(const SequenceHandle& handle) {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(handle.get(), 0, 0, &n));
  return n;
}

}  // namespace

struct kvevict_llama::Eviction {
  const kvevict_llama_evict_options& options;
  kvevict_llama_report& report;
  kvevict_sequence* handle = nullptr;  // a fork, with a target
};

// ---- What can be held -----------------------------------------------------------

void kvevict_llama::CheckFit(const Sequence& s, llama_seq_id seq) const {
  if (s.unfit.empty()) return;
  Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": ", s.unfit,
       ", so its cells are not known; remove it, and it can be decoded anew");
}

void kvevict_llama::CheckPolicyFits() const {
  const bool one_list = policy_.scope == KVEVICT_SCOPE_MODEL ||
                        policy_.kind == KVEVICT_POLICY_STREAMING_LLM;
  for (const LayerShape& shape : shapes_) {
    const auto refuse = [&](const char* what) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index, ": ", what);
    };
    if (shape.max_bias > 0 && !one_list) {
      refuse(
          "ALiBi goes by the positions of cells, which all layers and heads "
          "share; scope=model is held");
    }
    if (query_rows_ == 0) continue;
    if (shape.max_bias > 0) {
      refuse(
          "attention with ALiBi cannot be scored; use a policy that does "
          "not score by queries");
    }
  }
}

const Layer& kvevict_llama::LiveLayer(size_t i) const {
  for (const Layer& layer : observer_.layers()) {
    if (layer.shape.index != shapes_[i].index) continue;
    if (layer.shape != shapes_[i]) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shapes_[i].index,
           ": its cache or attention is not as it was");
    }
    return layer;
  }
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shapes_[i].index,
       " has not been seen: llama_decode() comes first");
}

uint64_t kvevict_llama::CellBytes() const {
  uint64_t bytes = 0;
  for (const LayerShape& shape : shapes_) {
    bytes += shape.k.row_bytes + (shape.v.head_dim > 0 ? shape.v.row_bytes : 0);
  }
  return bytes;
}

// ---- llama.cpp's state ----------------------------------------------------------

Bytes kvevict_llama::FetchState(llama_seq_id seq) const {
  Bytes bytes(llama_state_seq_get_size(ctx_, seq));
  const auto span = bytes.span();
  if (span.empty() || llama_state_seq_get_data(ctx_, span.data(), span.size(),
                                               seq) != span.size()) {
    Fail(KVEVICT_ERROR_INTERNAL, "seq ", seq,
         ": llama_state_seq_get_data() failed");
  }
  return bytes;
}

// The size, with header, of what is in a state besides cells that keep everything.
uint64_t kvevict_llama::PartialBytes(llama_seq_id seq) const {
  if (!recurrent_ && !windowed_) return 0;
  return llama_state_seq_get_size_ext(ctx_, seq,
                                      LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

State kvevict_llama::ParseState(llama_seq_id seq,
                                std::span<uint8_t> bytes) const {
  auto state = State::Parse(bytes, shapes_, PartialBytes(seq));
  // Models with windows may have one cache for all layers, as with a full window.
  if (!state) state = State::Parse(bytes, shapes_, 0);
  if (!state) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": llama.cpp's state of ",
         bytes.size(), " bytes has a form that is not known");
  }
  return *state;
}

void kvevict_llama::StoreState(llama_seq_id seq,
                               std::span<const uint8_t> bytes) {
  if (llama_state_seq_set_data(ctx_, bytes.data(), bytes.size(), seq) ==
      bytes.size()) {
    return;
  }
  llama_memory_seq_rm(llama_get_memory(ctx_), seq, -1, -1);
  Forget(sequences_[static_cast<size_t>(seq)]);
  Fail(KVEVICT_ERROR_INTERNAL, "sequence lost: llama.cpp did not take ",
       bytes.size(), " bytes of state for seq ", seq);
}

// ---- The eviction ---------------------------------------------------------------

std::vector<int32_t> kvevict_llama::Positions(const Sequence& s) const {
  std::vector<int32_t> positions(StoredLength(s.handle));
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(s.handle.get(), 0, 0, positions.data(),
                                        positions.size(), &n));
  return positions;
}

void kvevict_llama::Run(Sequence& s, Eviction& eviction,
                        const std::vector<kvevict_view>& views) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  if (eviction.options.evict != nullptr) options = *eviction.options.evict;

  const auto last = static_cast<int32_t>(s.next - 1);
  std::vector<int32_t> kept(
      options.protected_positions,
      options.protected_positions + options.protected_positions_len);
  if (kept.empty() || kept.back() != last) kept.push_back(last);
  options.protected_positions = kept.data();
  options.protected_positions_len = kept.size();

  const auto start = Clock::now();
  std::vector<kvevict_plane> planes(shapes_.size()), score_planes(planes);
  std::vector<std::vector<float>> scores(shapes_.size());
  std::vector<kvevict_signal_inputs> inputs(shapes_.size());
  if (query_rows_ > 0 && options.inputs == nullptr) {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const LayerShape& shape = shapes_[i];
      const auto index = static_cast<size_t>(shape.index);
      size_t known =
          index < s.queries.size() ? s.queries[index].n_before(s.next) : 0;
      size_t wanted = policy_.obs_window;
      if (policy_.kind == KVEVICT_POLICY_NON_CAUSAL) wanted = s.n_cells;
      if (policy_.kind == KVEVICT_POLICY_H2O) {
        // Rows from before an eviction saw keys that are gone.
        known = std::min<size_t>(
            {known, s.n_cells,
             s.evicted_at == 0 ? s.n_cells : s.next - s.evicted_at});
        wanted = std::max<size_t>(known, 1);
      }
      if (known < wanted) {
        Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shape.index,
             ": the policy scores by the last ", wanted, " queries, of which ",
             known, " are known");
      }
      const size_t row = size_t{shape.n_q_heads} * shape.k.head_dim;
      kvevict_plane& plane = planes[i] = KVEVICT_PLANE_INIT;
      plane.data = reinterpret_cast<uint64_t>(s.queries[index].Last(wanted));
      plane.dtype = KVEVICT_DTYPE_F32;
      plane.head_dim = shape.k.head_dim;
      plane.token_stride_bytes = static_cast<int64_t>(row * sizeof(float));
      plane.head_stride_bytes = shape.k.head_dim * int64_t{sizeof(float)};
      inputs[i] = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs[i].queries = &plane;
      inputs[i].n_query_rows = static_cast<uint32_t>(wanted);
      if (!own_scores_) continue;
      if (s.n_cells < wanted) continue;
      scores[i] = WindowScores(context_, policy_, shape, LiveLayer(i).sinks,
                               views[i], plane, s.n_cells);
      kvevict_plane& given = score_planes[i] = KVEVICT_PLANE_INIT;
      given.data = reinterpret_cast<uint64_t>(scores[i].data());
      given.dtype = KVEVICT_DTYPE_F32;
      given.head_dim = 1;
      inputs[i] = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs[i].scores = &given;
    }
    options.inputs = inputs.data();
    options.inputs_len = inputs.size();
  }

  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan_.get(), KVEVICT_OPERATION_EVICT, s.n_cells,
                               &size));
  Bytes workspace(size.best_bytes + size.alignment);
  Check(kvevict_sequence_evict(eviction.handle, views.data(), views.size(),
                               &options, workspace.Aligned(size.alignment),
                               size.best_bytes, nullptr));
  eviction.report.evict_ms = MillisecondsSince(start);

  kvevict_evict_report done = KVEVICT_EVICT_REPORT_INIT;
  Check(kvevict_sequence_report(eviction.handle, &done, nullptr, 0));
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(eviction.handle, 0, 0, &n));
  eviction.report.evicted = n < s.n_cells ? 1 : 0;
  eviction.report.cells_after = n;
}

const char* kvevict_llama::WhyNotInPlace(const Sequence& s) const {
  if (recurrent_) return "the model has recurrent layers";
  if (windowed_) return "the model has layers with a sliding window";
  if (!s.in_order) return "the sequence's cells are not in order";
  if (!s.placed) return "no token has been decoded since its state was set";
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const Layer& layer = LiveLayer(i);
    for (const ggml_tensor* t : {layer.k, layer.v}) {
      if (t != nullptr && !ggml_backend_buffer_is_host(t->buffer)) {
        return "the cache is not in host memory";
      }
    }
  }
  return nullptr;
}

std::vector<kvevict_view> kvevict_llama::LiveViews(llama_seq_id seq) const {
  std::vector<kvevict_view> views;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const Layer& layer = LiveLayer(i);
    const auto address = [&](const ggml_tensor* t) {
      if (t == nullptr) return uint64_t{0};
      const size_t stream = t->ne[2] > 1 ? static_cast<size_t>(seq) : 0;
      return reinterpret_cast<uint64_t>(t->data) + stream * t->nb[2];
    };
    views.push_back(CacheView(shapes_[i], address(layer.k), address(layer.v),
                              static_cast<uint64_t>(layer.k->ne[1])));
  }
  return views;
}

void kvevict_llama::EvictInPlace(llama_seq_id seq, Eviction& eviction) {
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  const auto n_streams = static_cast<uint32_t>(LiveLayer(0).k->ne[2]);
  const size_t size = llama_state_seq_get_size(ctx_, seq);
  if (!IsStateSize(shapes_, n_streams, s.n_cells, size)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": its state of ", size,
         " bytes is not that of the ", s.n_cells,
         " cells decoded; some were removed, shifted or copied, or the form is "
         "not known");
  }
  const std::vector<int32_t> before = Positions(s);
  Run(s, eviction, LiveViews(seq));
  if (eviction.report.evicted == 0) return;
  eviction.report.in_place = 1;

  // Free the cells behind the survivors, then give those their positions.
  const uint32_t kept = eviction.report.cells_after;
  llama_memory_seq_rm(llama_get_memory(ctx_), seq, before[kept], -1);
  try {
    Bytes bytes = FetchState(seq);
    State state = ParseState(seq, bytes.span());
    if (state.n_cells() != kept) {
      Fail(KVEVICT_ERROR_INTERNAL, state.n_cells(), " cells are left of ",
           kept);
    }
    StoreState(seq, bytes.span().first(state.Tighten(Positions(s))));
  } catch (const std::exception& error) {
    llama_memory_seq_rm(llama_get_memory(ctx_), seq, -1, -1);
    Forget(s);
    const std::string what = error.what();
    Fail(KVEVICT_ERROR_INTERNAL,
         what.starts_with("sequence lost") ? "" : "sequence lost: ", what);
  }
}

// Brings the rows of a state into the order of their positions.
void kvevict_llama::Order(State& state,
                          const std::vector<kvevict_view>& views) const {
  std::vector<int32_t> order(state.n_cells());
  std::iota(order.begin(), order.end(), 0);
  const auto earlier = [&](int32_t a, int32_t b) {
    return state.position(static_cast<uint32_t>(a)) <
           state.position(static_cast<uint32_t>(b));
  };
  if (std::is_sorted(order.begin(), order.end(), earlier)) return;
  std::sort(order.begin(), order.end(), earlier);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = order.data();
  keep.slots_len = order.size();
  keep.count = state.n_cells();
  for (const kvevict_view& view : views) {
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = state.n_cells();
    move.view = &view;
    move.keep = &keep;
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_reorder_workspace(context_, &move, 1, &size));
    Bytes workspace(size.best_bytes + size.alignment);
    Check(kvevict_reorder(context_, &move, 1, workspace.Aligned(size.alignment),
                          size.best_bytes, nullptr));
  }
  state.ReorderCells(order);
}

void kvevict_llama::EvictState(llama_seq_id seq, Eviction& eviction) {
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  Bytes bytes = FetchState(seq);
  State state = ParseState(seq, bytes.span());
  const std::vector<int32_t> before = Positions(s);
  if (state.n_cells() != before.size()) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": llama.cpp has ",
         state.n_cells(), " cells, of which ", before.size(),
         " were decoded here; some were removed or copied");
  }
  std::vector<kvevict_view> views;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    views.push_back(state.View(shapes_[i], i));
  }
  Order(state, views);
  for (uint32_t i = 0; i < state.n_cells(); ++i) {
    if (state.position(i) == before[i]) continue;
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": the token of position ",
         before[i], " has position ", state.position(i),
         " in llama.cpp; it was shifted");
  }
  Run(s, eviction, views);

  kvevict_llama* const target = eviction.options.target;
  if (target == nullptr) {
    if (eviction.report.evicted == 0) return;
    StoreState(seq, bytes.span().first(state.Tighten(Positions(s))));
    s.placed = false;
    s.in_order = n_seq_max_ == 1 || state.n_streams() > 1;
    return;
  }
  // The fork knows what stays.
  size_t n_saved = 0;
  Check(kvevict_sequence_save(eviction.handle, nullptr, 0, &n_saved));
  std::vector<uint8_t> saved(n_saved);
  Check(
      kvevict_sequence_save(eviction.handle, saved.data(), n_saved, &n_saved));
  std::vector<int32_t> kept(eviction.report.cells_after);
  Check(kvevict_sequence_keep_positions(eviction.handle, 0, 0, kept.data(),
                                        kept.size(), &n_saved));
  const uint32_t evicted_at =
      eviction.report.evicted != 0 ? s.next : s.evicted_at;
  target->Receive(eviction.options.target_seq, shapes_, saved,
                  bytes.span().first(state.Tighten(kept)),
                  {s.next, evicted_at, eviction.report.cells_after});
}

void kvevict_llama::Receive(llama_seq_id seq,
                            const std::vector<LayerShape>& shapes,
                            std::span<const uint8_t> saved,
                            std::span<const uint8_t> state,
                            const Lengths& lengths) {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  if (seq < 0 || static_cast<uint32_t>(seq) >= n_seq_max_) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq, " is not in [0, ",
         n_seq_max_, ")");
  }
  if (plan_ != nullptr && shapes != shapes_) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "the context has another model, other cache types or other flash "
         "attention than the state");
  }
  if (lengths.n_cells > llama_n_ctx_seq(ctx_)) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the context has room for ",
         llama_n_ctx_seq(ctx_), " cells < ", lengths.n_cells);
  }
  if (plan_ == nullptr) AdoptLayers(shapes, 0);
  kvevict_sequence* handle = nullptr;
  Check(kvevict_sequence_create(plan_.get(), &handle));
  SequenceHandle loaded(handle);
  Check(kvevict_sequence_load(handle, saved.data(), saved.size(), nullptr));

  StoreState(seq, state);
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  Forget(s);
  s.handle = std::move(loaded);
  s.next = lengths.next;
  s.evicted_at = lengths.evicted_at;
  s.n_cells = lengths.n_cells;
  s.placed = false;
  s.in_order = n_seq_max_ == 1;
}

void kvevict_llama::Evict(llama_seq_id seq,
                          const kvevict_llama_evict_options& options,
                          kvevict_llama_report& report) {
  const auto start = Clock::now();
  if (options.way < KVEVICT_LLAMA_WAY_AUTO ||
      options.way > KVEVICT_LLAMA_WAY_STATE) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "options.way ",
         static_cast<int>(options.way), " is not in [0, 2]");
  }
  if (options.target == this) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "options.target is the adapter itself");
  }
  if (options.evict != nullptr &&
      (options.evict->undo != nullptr || options.evict->by_table != 0)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED,
         "options.evict: undo and by_table do not reach llama.cpp's cells");
  }
  Sequence& s = Sync(seq);
  CheckFit(s, seq);
  if (options.evict == nullptr || options.evict->inputs == nullptr) {
    CheckPolicyFits();
  }
  const uint64_t cell_bytes = CellBytes();
  report.cells_before = report.cells_after = s.n_cells;
  report.bytes_before = report.bytes_after = s.n_cells * cell_bytes;
  if (s.n_cells == 0) return;

  const char* why = options.target != nullptr ? "it has a target"
                    : options.way == KVEVICT_LLAMA_WAY_STATE
                        ? "options.way is STATE"
                        : WhyNotInPlace(s);
  if (why != nullptr && options.way == KVEVICT_LLAMA_WAY_IN_PLACE) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq,
         " cannot be evicted in place: ", why);
  }
  if (options.target == nullptr && WouldKeepAll(s, seq)) {
    report.total_ms = MillisecondsSince(start);
    return;
  }
  Eviction eviction{options, report, s.handle.get()};
  SequenceHandle fork;
  if (options.target != nullptr) {
    Check(kvevict_sequence_fork(s.handle.get(), nullptr, &eviction.handle,
                                nullptr));
    fork.reset(eviction.handle);
  }
  if (why == nullptr) {
    EvictInPlace(seq, eviction);
  } else {
    EvictState(seq, eviction);
  }
  report.bytes_after = report.cells_after * cell_bytes;
  if (report.evicted != 0 && options.target == nullptr) {
    s.n_cells = report.cells_after;
    s.evicted_at = s.next;
  }
  report.total_ms = MillisecondsSince(start);
}

// Whether the eviction would do nothing, so that no state need be fetched for it.
bool kvevict_llama::WouldKeepAll(const Sequence& s, llama_seq_id seq) const {
  if (policy_.merge != KVEVICT_MERGE_NONE || !s.placed) return false;
  const std::vector<kvevict_view> views = LiveViews(seq);
  size_t bytes = 0;
  Check(kvevict_sequence_undo_bytes(s.handle.get(), views.data(), views.size(),
                                    &bytes));
  return bytes == 0;
}
