// Whole evictions of models, queued and as graphs, and what sequences do around them.
#include <fmt/format.h>

#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

struct Evicting {
  CacheShape cache;
  std::string policy;
  uint32_t n_tokens;  // held before
  enum Kind { kOne, kBatch, kOneByOne, kWithUndo, kUndo } kind = kOne;
};

constexpr uint32_t kEvictionsWindow = 64;

struct EvictionsState {
  Cache cache;
  Queries queries;
  std::shared_ptr<kvevict_plan> plan;
  std::vector<std::shared_ptr<kvevict_sequence>> sequences;
  std::vector<kvevict_signal_inputs> inputs;
  kvevict_evict_options options;
  std::vector<kvevict_sequence_eviction> evictions;
  std::unique_ptr<Buffer> workspace;
  std::unique_ptr<Buffer> undo;
};

std::shared_ptr<kvevict_plan> PreparedPlanOf(const Bed& bed,
                                             const CacheShape& shape,
                                             const std::string& policy) {
  const auto plan = PlanOf(bed, shape, KVEVICT_DTYPE_BF16, policy);
  bed.library.Check(bed.library.context_prepare(bed.context.get(), plan.get()));
  return plan;
}

// All sequences hold n_tokens again, as before the eviction.
void Refill(const Bed& bed, const EvictionsState& state, uint32_t n_tokens) {
  for (const auto& sequence : state.sequences) {
    bed.library.Check(
        bed.library.sequence_reset(sequence.get(), bed.gpu.stream()));
    bed.library.Check(bed.library.sequence_append(sequence.get(), n_tokens,
                                                  bed.gpu.stream()));
  }
}

void Evict(const Bed& bed, const EvictionsState& state, bool together) {
  const size_t n = together ? state.evictions.size() : 1;
  for (size_t i = 0; i < state.evictions.size(); i += n) {
    const kvevict_sequence_eviction& e = state.evictions[i];
    if (n > 1) {
      bed.library.Check(bed.library.sequences_evict(
          &e, n, state.workspace->pointer<void>(), state.workspace->n_bytes(),
          bed.gpu.stream()));
    } else {
      bed.library.Check(bed.library.sequence_evict(
          e.sequence, e.views, e.views_len, e.options,
          state.workspace->pointer<void>(), state.workspace->n_bytes(),
          bed.gpu.stream()));
    }
  }
}

Work MakeEviction(const Bed& bed, const Evicting& e) {
  const Model& m = e.cache.model;
  const auto state = std::make_shared<EvictionsState>(
      EvictionsState{Cache(bed.gpu, e.cache, bed.seed),
                     Queries(bed.gpu, m, 1, kEvictionsWindow,
                             KVEVICT_DTYPE_BF16, bed.seed + 1),
                     PreparedPlanOf(bed, e.cache, e.policy),
                     {},
                     std::vector<kvevict_signal_inputs>(
                         m.n_layers, KVEVICT_SIGNAL_INPUTS_INIT),
                     KVEVICT_EVICT_OPTIONS_INIT,
                     {},
                     nullptr,
                     nullptr});
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    state->inputs[l].queries = &state->queries.of(l);
  }
  state->options.inputs = state->inputs.data();
  state->options.inputs_len = state->inputs.size();
  for (uint32_t i = 0; i < e.cache.n_sequences; ++i) {
    state->sequences.push_back(bed.library.Sequence(state->plan.get()));
    kvevict_sequence_eviction eviction = KVEVICT_SEQUENCE_EVICTION_INIT;
    eviction.sequence = state->sequences.back().get();
    eviction.views = state->cache.views(i);
    eviction.views_len = m.n_layers;
    eviction.options = &state->options;
    state->evictions.push_back(eviction);
  }
  const bool together = e.kind == Evicting::kBatch;
  Refill(bed, *state, e.n_tokens);
  size_t n_bytes =
      bed.library.WorkspaceBytes(state->plan.get(), KVEVICT_OPERATION_EVICT);
  if (together) {
    kvevict_workspace bytes = KVEVICT_WORKSPACE_INIT;
    bed.library.Check(bed.library.sequences_workspace(
        state->evictions.data(), state->evictions.size(), &bytes));
    n_bytes = bytes.best_bytes;
  }
  state->workspace = std::make_unique<Buffer>(bed.gpu, n_bytes);
  const bool undone = e.kind == Evicting::kUndo;
  if (undone || e.kind == Evicting::kWithUndo) {
    size_t undo_bytes = 0;
    bed.library.Check(bed.library.sequence_undo_bytes(state->sequences[0].get(),
                                                      state->cache.views(),
                                                      m.n_layers, &undo_bytes));
    state->undo = std::make_unique<Buffer>(bed.gpu, undo_bytes);
    state->options.undo = state->undo->pointer<void>();
    state->options.undo_bytes = undo_bytes;
  }
  Work work;
  const auto evict = [bed, state, together] { Evict(bed, *state, together); };
  work.prepare = [bed, state, evict, undone, n = e.n_tokens] {
    Refill(bed, *state, n);
    if (undone) evict();
  };
  work.run = evict;
  if (undone) {
    work.run = [bed, state, n_layers = m.n_layers] {
      bed.library.Check(bed.library.sequence_undo(
          state->sequences[0].get(), state->cache.views(), n_layers,
          state->undo->pointer<void>(), state->undo->n_bytes(),
          bed.gpu.stream()));
    };
  }
  return work;
}

// One token's queries of every layer: a call for each layer, or one for all.
struct Observing {
  Model model;
  uint32_t n_tokens;
  bool together;
  bool sums;  // h2o's attention sums in place of query rows
};

struct Observed {
  Queries queries;
  Buffer sums;
  std::shared_ptr<kvevict_plan> plan;
  std::shared_ptr<kvevict_sequence> sequence;
  std::vector<kvevict_plane> planes;
  std::vector<kvevict_signal_inputs> inputs;
  std::vector<kvevict_observation> observations;
};

Work MakeObservation(const Bed& bed, const Observing& o) {
  const Model& m = o.model;
  const uint32_t n = o.n_tokens;
  const std::string policy =
      o.sums ? "h2o:budget=64" : "snapkv:budget=80,window=64";
  const auto state = std::make_shared<Observed>(Observed{
      Queries(bed.gpu, m, 1, 1, KVEVICT_DTYPE_BF16, bed.seed),
      Buffer(bed.gpu, sizeof(float) * m.n_q_heads * n),
      PreparedPlanOf(bed, {m, 1, n}, policy), nullptr,
      std::vector<kvevict_plane>(m.n_layers),
      std::vector<kvevict_signal_inputs>(m.n_layers,
                                         KVEVICT_SIGNAL_INPUTS_INIT),
      std::vector<kvevict_observation>(m.n_layers, KVEVICT_OBSERVATION_INIT)});
  const std::vector<float> ones(size_t{m.n_q_heads} * n, 1.0f);
  state->sums.Write(ones.data(), state->sums.n_bytes());
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    if (o.sums) {
      state->planes[l] = kvevict_plane_head_major(state->sums.pointer<float>(),
                                                  KVEVICT_DTYPE_F32, n, 1);
      state->inputs[l].attention_sums = &state->planes[l];
    } else {
      state->inputs[l].queries = &state->queries.of(l);
    }
    state->observations[l].layer = l;
    state->observations[l].inputs = &state->inputs[l];
  }
  state->sequence = bed.library.Sequence(state->plan.get());
  bed.library.Check(
      bed.library.sequence_begin_observing(state->sequence.get(), nullptr, 0));
  Work work;
  work.prepare = [bed, state, n] {
    bed.library.Check(
        bed.library.sequence_reset(state->sequence.get(), bed.gpu.stream()));
    bed.library.Check(bed.library.sequence_append(state->sequence.get(), n - 1,
                                                  bed.gpu.stream()));
  };
  const size_t at_once = o.together ? m.n_layers : 1;
  work.run = [bed, state, at_once] {
    for (size_t l = 0; l < state->observations.size(); l += at_once) {
      bed.library.Check(bed.library.sequence_observe(
          state->sequence.get(), &state->observations[l], at_once, 1,
          KVEVICT_POSITION_NEXT, bed.gpu.stream()));
    }
    bed.library.Check(bed.library.sequence_append(state->sequence.get(), 1,
                                                  bed.gpu.stream()));
  };
  return work;
}

}  // namespace

std::vector<Row> EvictionRows(const Scale& scale) {
  std::vector<Row> rows;
  const uint32_t budget = scale.Tokens(2048);
  const auto add = [&](const std::string& name, const Evicting& e, By by) {
    rows.push_back({"evictions",
                    name + (by == By::kGraph ? ", as a graph" : ", queued"), by,
                    e.cache.RowBytes() + e.cache.RowBytes() / 4,
                    [e](const Bed& bed) { return MakeEviction(bed, e); }});
  };
  const auto evicting = [&](const Model& model, const char* policy,
                            uint32_t n_tokens) {
    Evicting e{{scale.Of(model)}, "", scale.Tokens(n_tokens)};
    e.cache.n_tokens = e.n_tokens;
    e.policy =
        fmt::format("{}:budget={}{}", policy, budget,
                    std::string_view(policy) == "snapkv" ? ",window=64" : "");
    return e;
  };
  for (const Model& model : {k256Group6, k256Group8, k128}) {
    for (const char* policy : {"snapkv", "tova", "knorm", "streaming-llm"}) {
      for (const By by : {By::kGraph, By::kQueue}) {
        add(fmt::format("evict by {}, 16384 to 2048: {}", policy, model.name),
            evicting(model, policy, 16384), by);
      }
    }
  }
  for (const char* policy : {"snapkv", "tova", "knorm"}) {
    Evicting e = evicting(k128, policy, 2176);
    e.cache.n_sequences = scale.Sequences(32);
    for (const By by : {By::kGraph, By::kQueue}) {
      e.kind = Evicting::kBatch;
      add(fmt::format("evict 32 sequences by {}, 2176 to 2048, one call",
                      policy),
          e, by);
      e.kind = Evicting::kOneByOne;
      add(fmt::format("evict 32 sequences by {}, 2176 to 2048, 32 calls",
                      policy),
          e, by);
    }
  }
  // While decoding: every step, and every 128.
  for (const char* policy : {"tova", "streaming-llm", "knorm"}) {
    for (const uint32_t n_tokens : {2049u, 2176u}) {
      add(fmt::format("evict by {}, {} to 2048: {}", policy, n_tokens,
                      k128.name),
          evicting(k128, policy, n_tokens), By::kQueue);
    }
  }
  for (const uint32_t n_tokens : {2176u, 16384u}) {
    Evicting e = evicting(k128, "knorm", n_tokens);
    e.kind = Evicting::kWithUndo;
    add(fmt::format("evict by knorm with undo, {} to 2048: {}", n_tokens,
                    k128.name),
        e, By::kQueue);
    e.kind = Evicting::kUndo;
    add(fmt::format("undo, 2048 to {}: {}", n_tokens, k128.name), e,
        By::kQueue);
  }
  return rows;
}

std::vector<Row> ObservationRows(const Scale& scale) {
  std::vector<Row> rows;
  for (const Model& model : {k128, k256Group6}) {
    for (const bool sums : {false, true}) {
      for (const bool together : {false, true}) {
        const Observing o{scale.Of(model), scale.Tokens(2048), together, sums};
        const std::string name =
            fmt::format("observe a token's {}, {}: {}",
                        sums ? "sums of 2048 slots" : "queries",
                        together ? "one call" : "a call a layer", model.name);
        const auto make = [o](const Bed& bed) {
          return MakeObservation(bed, o);
        };
        // The first sums after tokens that were not observed cannot be captured.
        if (!sums) {
          rows.push_back(
              {"observations", name + ", as a graph", By::kGraph, 0, make});
        }
        rows.push_back(
            {"observations", name + ", queued", By::kQueue, 0, make});
      }
    }
  }
  return rows;
}

}  // namespace kvevict::gpu::rows
