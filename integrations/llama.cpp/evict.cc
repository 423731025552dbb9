// Evictions: on the cache's own tensors, or in a copy of a sequence's state.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "adapter.h"
#include "error.h"
#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"

using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::Layer;
using kvevict::llama::LayerShape;
using kvevict::llama::PositionsOf;
using kvevict::llama::Sequence;
using kvevict::llama::SequenceHandle;
using kvevict::llama::State;

namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

}  // namespace

struct kvevict_llama::Eviction {
  const kvevict_llama_evict_options& options;
  kvevict_llama_report& report;
  kvevict_sequence* handle = nullptr;  // a fork, unless in place
};

// ---- Checks of the policy ---------------------------------------------------

void kvevict_llama::CheckPolicyFits() const {
  for (const LayerShape& shape : shapes_) {
    const auto refuse = [&](const char* what) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index, ": ", what);
    };
    if (shape.max_bias > 0 && !policy_.has_one_list) {
      refuse(
          "ALiBi goes by the positions of cells, which all layers and heads "
          "share; scope=model works");
    }
    if (query_rows_ == 0 && !policy_.Needs(KVEVICT_INPUT_QUERY_MEAN)) continue;
    if (shape.max_bias > 0) {
      refuse(
          "attention with ALiBi cannot be scored; use a policy that does "
          "not score by queries");
    }
  }
}

// ---- The eviction -----------------------------------------------------------

// Finds the last query rows of a layer as an input of its signal.
void kvevict_llama::FindQueries(const Sequence& s, size_t layer,
                                kvevict_plane* plane,
                                kvevict_signal_inputs* inputs) const {
  const LayerShape& shape = shapes_[layer];
  const auto index = static_cast<size_t>(shape.index);
  const size_t known =
      index < s.queries.size() ? s.queries[index].n_before(s.next) : 0;
  size_t wanted = policy_.n_query_rows;
  if (wanted == KVEVICT_QUERY_ROWS_ALL) wanted = s.n_cells;
  if (wanted == KVEVICT_QUERY_ROWS_ANY) {
    // Rows from before an eviction saw keys that are gone.
    const uint32_t since = s.next - s.evicted_at;
    wanted = std::max(1u, std::min({h2o_rows_, s.n_cells, since}));
  }
  if (known < wanted) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shape.index,
         ": the policy scores by the last ", wanted, " queries, of which ",
         known, " are known");
  }
  const size_t row = size_t{shape.n_q_heads} * shape.k.head_dim;
  *plane = KVEVICT_PLANE_INIT;
  plane->data = reinterpret_cast<uint64_t>(s.queries[index].Last(wanted));
  plane->dtype = KVEVICT_DTYPE_F32;
  plane->head_dim = shape.k.head_dim;
  plane->token_stride_bytes = static_cast<int64_t>(row * sizeof(float));
  plane->head_stride_bytes = shape.k.head_dim * int64_t{sizeof(float)};
  inputs->queries = plane;
  inputs->n_query_rows = static_cast<uint32_t>(wanted);
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
  std::vector<LayerInputs> inputs;
  std::vector<kvevict_signal_inputs> of_layers;
  if (options.inputs == nullptr) {
    FindInputs(s, views, inputs, of_layers);
    options.inputs = of_layers.data();
    options.inputs_len = of_layers.size();
  }

  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan_.get(), KVEVICT_OPERATION_EVICT, s.n_cells,
                               &size));
  workspace_.Reserve(size.best_bytes);
  Check(kvevict_sequence_evict(eviction.handle, views.data(), views.size(),
                               &options, workspace_.data(), size.best_bytes,
                               nullptr));
  eviction.report.evict_ms = MillisecondsSince(start);

  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(eviction.handle, 0, 0, &n));
  eviction.report.evicted = n < s.n_cells ? 1 : 0;
  eviction.report.cells_after = n;
  if (eviction.report.evicted != 0) {
    eviction.report.mass_kept = MassKept(eviction.handle);
  }
}

// The mean over all lists of the last eviction.
float kvevict_llama::MassKept(const kvevict_sequence* handle) const {
  size_t n_lists = 0;
  for (uint32_t i = 0; i < shapes_.size(); ++i) {
    kvevict_layer_info info = {};
    info.struct_size = sizeof info;
    Check(kvevict_plan_layer(plan_.get(), i, &info));
    n_lists += info.n_lists;
  }
  std::vector<kvevict_list_report> lists(n_lists, KVEVICT_LIST_REPORT_INIT);
  Check(kvevict_sequence_report(handle, nullptr, lists.data(), lists.size()));
  double sum = 0;
  for (const kvevict_list_report& list : lists) {
    sum += static_cast<double>(list.mass_kept);
  }
  return static_cast<float>(sum / static_cast<double>(n_lists));
}

const char* kvevict_llama::WhyNotInPlace(const Sequence& s,
                                         llama_seq_id seq) const {
  if (recurrent_) return "the model has recurrent layers";
  if (windowed_) return "the model has layers with a sliding window";
  if (n_streams_ == 1 && OthersHaveTokens(seq)) {
    return "other sequences of its cache may share its cells";
  }
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
  CheckCells(s, seq);
  const std::vector<int32_t> before = PositionsOf(s.handle.get());
  Run(s, eviction, LiveViews(seq));
  if (eviction.report.evicted == 0) return;
  eviction.report.in_place = 1;

  // Frees the cells after the survivors, then gives these their positions.
  const uint32_t kept = eviction.report.cells_after;
  llama_memory_seq_rm(llama_get_memory(ctx_), seq, before[kept], -1);
  try {
    const auto bytes = state_.Fetch(seq, kept_state_);
    State state = state_.Parse(seq, bytes, shapes_);
    if (state.n_cells() != kept) {
      Fail(KVEVICT_ERROR_INTERNAL, state.n_cells(), " cells are left of ",
           kept);
    }
    const size_t n_bytes = state.Tighten(PositionsOf(s.handle.get()));
    if (state_.Store(seq, bytes.first(n_bytes))) return;
  } catch (const std::exception& error) {
    llama_memory_seq_rm(llama_get_memory(ctx_), seq, -1, -1);
    Lose(seq, error.what());
  }
  Lose(seq, "llama.cpp did not take the state of what stays");
}

// Sorts the rows of a state by position.
void kvevict_llama::Order(State& state,
                          const std::vector<kvevict_view>& views) {
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
    workspace_.Reserve(size.best_bytes);
    Check(kvevict_reorder(context_, &move, 1, workspace_.data(),
                          size.best_bytes, nullptr));
  }
  state.ReorderCells(order);
}

void kvevict_llama::EvictState(llama_seq_id seq, Eviction& eviction) {
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  Bytes memory;
  const auto bytes = state_.Fetch(seq, memory);
  State state = state_.Parse(seq, bytes, shapes_);
  CheckState(s, seq, state);
  std::vector<kvevict_view> views;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    views.push_back(state.View(shapes_[i], i));
  }
  Order(state, views);
  Run(s, eviction, views);
  const std::vector<int32_t> kept = PositionsOf(eviction.handle);

  kvevict_llama* const target = eviction.options.target;
  if (target == nullptr) {
    if (eviction.report.evicted == 0) return;
    CheckRoomBeside(seq, state, eviction.report.cells_after);
    std::vector<uint8_t> key = KeyIn(state, eviction.report.cells_after - 1);
    if (!state_.Store(seq, bytes.first(state.Tighten(kept)))) {
      Lose(seq, "llama.cpp did not take the state of what stays");
    }
    ForgetWitnesses(s);
    s.state_key = std::move(key);
    s.state_last = s.next - 1;
    s.placed = false;
    s.in_order = n_seq_max_ == 1 || state.n_streams() > 1;
    return;
  }
  // The fork has the positions of what stays.
  size_t n_saved = 0;
  Check(kvevict_sequence_save(eviction.handle, nullptr, 0, &n_saved));
  std::vector<uint8_t> saved(n_saved);
  Check(
      kvevict_sequence_save(eviction.handle, saved.data(), n_saved, &n_saved));
  target->Receive(
      eviction.options.target_seq,
      {.shapes = shapes_,
       .sinks = sinks_,
       .saved = saved,
       .state = bytes.first(state.Tighten(kept)),
       .next = s.next,
       .evicted_at = eviction.report.evicted != 0 ? s.next : s.evicted_at,
       .n_cells = eviction.report.cells_after,
       .rope_factors = rope_factors_,
       .rotations = rotations_});
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
  if (options.reserved != 0) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "options.reserved ", options.reserved,
         " != 0");
  }
  if (options.target == nullptr && options.target_seq != 0) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "options.target_seq ",
         options.target_seq, " != 0 without options.target");
  }
  if (options.target == this) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "options.target is the adapter itself: a context cannot be its own "
         "target");
  }
  if (options.evict != nullptr &&
      (options.evict->undo != nullptr || options.evict->by_table != 0)) {
    Fail(KVEVICT_ERROR_UNSUPPORTED,
         "options.evict: undo and by_table do not reach llama.cpp's cells");
  }
  Sequence& s = Sync(seq);
  if (options.evict == nullptr || options.evict->inputs == nullptr) {
    CheckPolicyFits();
  }
  const uint64_t cell_bytes = CellBytes();
  report.cells_before = report.cells_after = s.n_cells;
  report.bytes_before = report.bytes_after = s.n_cells * cell_bytes;
  report.mass_kept = 1;
  if (s.n_cells == 0) return;

  const char* why = options.target != nullptr ? "it has a target"
                    : options.way == KVEVICT_LLAMA_WAY_STATE
                        ? "options.way is STATE"
                        : WhyNotInPlace(s, seq);
  if (why != nullptr && options.way == KVEVICT_LLAMA_WAY_IN_PLACE) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq,
         " cannot be evicted in place: ", why);
  }
  if (options.target == nullptr && WouldKeepAll(s, seq)) {
    report.total_ms = MillisecondsSince(start);
    return;
  }
  CheckRowsAreThere(seq);
  if (options.target == nullptr) CheckNoneCopies(seq);
  Eviction eviction{options, report, s.handle.get()};
  SequenceHandle fork;
  if (why != nullptr) {
    Check(kvevict_sequence_fork(s.handle.get(), nullptr, &eviction.handle,
                                nullptr));
    fork.reset(eviction.handle);
  }
  if (why == nullptr) {
    EvictInPlace(seq, eviction);
  } else {
    EvictState(seq, eviction);
    if (options.target == nullptr) s.handle = std::move(fork);
  }
  report.bytes_after = report.cells_after * cell_bytes;
  if (report.evicted != 0 && options.target == nullptr) {
    if (report.in_place != 0) MoveWitnesses(s, seq, report.cells_after);
    s.n_cells = report.cells_after;
    s.evicted_at = s.next;
  }
  report.total_ms = MillisecondsSince(start);
}

// Whether the eviction would do nothing, so that no state needs to be fetched.
bool kvevict_llama::WouldKeepAll(const Sequence& s, llama_seq_id seq) const {
  if (policy_.rewrites || !s.placed) return false;
  const std::vector<kvevict_view> views = LiveViews(seq);
  size_t bytes = 0;
  Check(kvevict_sequence_undo_bytes(s.handle.get(), views.data(), views.size(),
                                    &bytes));
  return bytes == 0;
}
