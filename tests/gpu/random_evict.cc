#include "tests/gpu/random_evict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/random_undo.h"
#include "tests/gpu/score_error.h"

namespace kvevict::gpu {

std::vector<float> RandomScores(Random* random, size_t n) {
  const uint32_t levels = random->Pick({2u, 50u, 1000000u});
  std::vector<float> scores(n);
  for (float& score : scores) {
    score = static_cast<float>(random->In(0, levels)) * 0.37f - 1.0f;
    if (random->OneOf(10)) {
      score = random->Pick({NAN, INFINITY, -INFINITY, -0.0f, 0.0f, 1e-42f});
    }
  }
  return scores;
}

std::vector<int32_t> RandomSlots(Random* random, uint32_t n) {
  std::vector<int32_t> slots;
  const uint32_t one_of = n > 500 ? 3 : 30;  // a launch holds fewer
  for (uint32_t i = 0; i < n; ++i) {
    if (random->OneOf(one_of)) slots.push_back(static_cast<int32_t>(i));
  }
  return slots;
}

namespace {

// ---- The inputs of both sides ----

// Scores of a layer or its attention sums: rows of heads with or without gaps.
struct LayerScores {
  std::vector<float> values;
  uint32_t n_heads = 0;
  uint32_t stride = 0;
  std::unique_ptr<Buffer> buffer;
};

// f32 numbers [n_heads, n_rows, n] with or without gaps between heads.
struct GivenRows {
  std::vector<float> values;
  std::unique_ptr<Buffer> buffer;
  kvevict_plane host{};
  kvevict_plane device{};

  GivenRows(const Gpu& gpu, Random* random, uint32_t n_heads, uint32_t n_rows,
            uint32_t n, float spread) {
    const size_t stride = size_t{n_rows} * n + random->In(0, 3);
    values.resize(n_heads * stride);
    for (float& v : values) {
      v = spread * (static_cast<float>(random->In(0, 2000)) / 1000.0f - 0.75f);
    }
    buffer = std::make_unique<Buffer>(gpu, values.size() * sizeof(float));
    buffer->Write(values.data(), buffer->n_bytes());
    host.dtype = KVEVICT_DTYPE_F32;
    host.head_dim = n;
    host.token_stride_bytes = static_cast<int64_t>(n * sizeof(float));
    host.head_stride_bytes = static_cast<int64_t>(stride * sizeof(float));
    device = host;
    host.data = reinterpret_cast<uintptr_t>(values.data());
    device.data = buffer->address();
  }

  // Rounds to few bits, so that both sides add up products with cached rows exactly.
  void Coarsen() {
    for (float& v : values) v = std::floor(v * 8.0f) / 8.0f;
    buffer->Write(values.data(), buffer->n_bytes());
  }
};

// A layer's reference queries. kvevict_score() takes slots for positions, so that
// its rows that see as many slots as an eviction's have other positions.
struct Reference {
  uint32_t n_rows = 0;
  QueryRows rows;
  std::vector<int32_t> of_door;  // empty: none are given
  std::unique_ptr<Buffer> of_door_there;
  std::unique_ptr<Buffer> of_eviction_there;

  void LendToDoor(bool on_device, kvevict_signal_inputs* inputs) const {
    inputs->n_reference_rows = n_rows;
    inputs->reference_queries = on_device ? &rows.device : &rows.host;
    if (of_door.empty()) return;
    inputs->reference_positions =
        on_device ? of_door_there->pointer<int32_t>() : of_door.data();
  }
  void LendToEviction(kvevict_signal_inputs* inputs) const {
    inputs->n_reference_rows = n_rows;
    inputs->reference_queries = &rows.device;
    if (of_door.empty()) return;
    inputs->reference_positions = of_eviction_there->pointer<int32_t>();
  }
};

// The slot as whose position `position` sees the same slots in every head, or a
// position behind all slots, which is written to both.
int32_t SlotLike(const std::vector<std::vector<int32_t>>& heads,
                 bool weighs_by_past, int32_t* position) {
  const auto n_upto = [&](const std::vector<int32_t>& held) {
    return std::upper_bound(held.begin(), held.end(), *position) - held.begin();
  };
  const auto n = n_upto(heads[0]);
  for (const std::vector<int32_t>& held : heads) {
    const bool is_held = n > 0 && static_cast<size_t>(n) <= held.size() &&
                         held[static_cast<size_t>(n - 1)] == *position;
    if (n > 0 && n_upto(held) == n && (is_held || !weighs_by_past)) continue;
    return *position = INT32_MAX;
  }
  return static_cast<int32_t>(n - 1);
}

Reference DrawReference(const Gpu& gpu, Random* random,
                        const RandomModel& model, uint32_t layer) {
  Reference r;
  r.n_rows = model.policy().reference;
  r.rows = model.ReferenceQueries(layer);
  if (random->OneOf(2)) return r;
  std::vector<std::vector<int32_t>> heads;
  for (uint32_t h = 0; h < model.n_kv_heads(layer); ++h) {
    std::vector<int32_t> held(model.Stored(layer, h));
    size_t n = 0;
    Check(kvevict_sequence_keep_positions(model.twin(), layer, h, held.data(),
                                          held.size(), &n));
    // Keys that are rotated lie at the positions of their slots.
    if (model.policy().rotate) std::iota(held.begin(), held.end(), 0);
    heads.push_back(std::move(held));
  }
  const bool weighs = model.policy().row_weight == ORACLE_ROW_WEIGHT_PAST;
  std::vector<int32_t> of_eviction;
  for (uint32_t i = 0; i < model.policy().reference; ++i) {
    auto position =
        static_cast<int32_t>(random->In(0, model.Logical() * 5 / 4));
    r.of_door.push_back(SlotLike(heads, weighs, &position));
    of_eviction.push_back(position);
  }
  const auto there = [&](const std::vector<int32_t>& positions) {
    auto buffer =
        std::make_unique<Buffer>(gpu, positions.size() * sizeof(int32_t));
    buffer->Write(positions.data(), buffer->n_bytes());
    return buffer;
  };
  r.of_door_there = there(r.of_door);
  r.of_eviction_there = there(of_eviction);
  return r;
}

// A layer's inputs for signal and weights beside queries and scores.
struct LayerRows {
  std::optional<GivenRows> mean;
  std::optional<GivenRows> covariance;
  std::optional<GivenRows> weights;
  std::optional<GivenRows> filter;
  std::optional<GivenRows> centers;
  std::optional<QueryRows> queries;  // those of every slot
  std::optional<Reference> reference;

  void Lend(bool on_device, kvevict_signal_inputs* inputs) const {
    const auto plane = [&](const std::optional<GivenRows>& rows) {
      return !rows ? nullptr : on_device ? &rows->device : &rows->host;
    };
    inputs->query_mean = plane(mean);
    inputs->query_covariance = plane(covariance);
    inputs->token_weights = plane(weights);
    inputs->key_filter = plane(filter);
    inputs->query_centers = plane(centers);
    if (queries)
      inputs->queries = on_device ? &queries->device : &queries->host;
  }
};

LayerRows DrawRows(const Gpu& gpu, Random* random, const RandomModel& model,
                   uint32_t layer) {
  const kvevict_layer_geometry& g = model.geometry().layer(layer);
  LayerRows rows;
  if (model.by_statistics()) {
    rows.mean.emplace(gpu, random, g.n_q_heads, 1, g.k_head_dim, 1.0f);
    if (layer % 3 < 2) {  // so runs of layers go together
      rows.covariance.emplace(gpu, random, g.n_q_heads, g.k_head_dim,
                              g.k_head_dim,
                              1.0f / static_cast<float>(g.k_head_dim));
    }
  }
  if (model.by_filter()) {
    rows.filter.emplace(gpu, random, g.n_kv_heads, 1, g.k_head_dim, 1.0f);
    rows.filter->Coarsen();
  }
  if (model.by_centers()) {
    rows.centers.emplace(gpu, random, g.n_q_heads, 3,
                         model.geometry().n_rope_pairs(), 1.0f);
  }
  if (model.by_all_queries()) {
    rows.queries = model.Queries(layer, 0, std::max(1u, model.Stored(layer)));
  }
  if (model.by_reference() && model.Logical() > 0) {
    rows.reference = DrawReference(gpu, random, model, layer);
  }
  if (model.by_given_weights()) {
    rows.weights.emplace(gpu, random, g.n_kv_heads,
                         std::max(1u, model.Stored(layer)), 1, 2.0f);
  }
  return rows;
}

struct EvictInput {
  std::vector<int32_t> protect;
  std::vector<kvevict_token_range> ranges;
  std::vector<LayerRows> rows;                    // one per layer
  std::vector<LayerScores> scores;                // one per layer
  std::vector<std::optional<QueryRows>> windows;  // if attention scores
  LayerInputs device;
  LayerInputs host;
};

// Some positions, and sometimes the first one after those that the last
// eviction listed.
std::vector<int32_t> DrawProtected(const RandomModel& model, Random* random) {
  std::vector<int32_t> positions = RandomSlots(random, model.Logical());
  const uint32_t layer = model.first_full();
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(model.sequence(), layer, &memory));
  if (random->OneOf(2) && memory.n_listed < model.Stored(layer, 0)) {
    int32_t edge = 0;
    Check(kvevict_sequence_position_of_slot(model.twin(), layer, 0,
                                            memory.n_listed, &edge));
    const auto place =
        std::lower_bound(positions.begin(), positions.end(), edge);
    if (place == positions.end() || *place != edge) {
      positions.insert(place, edge);
    }
  }
  return positions;
}

// Adjacent and separate ranges of positions that are held, gone and to come.
std::vector<kvevict_token_range> DrawRanges(uint32_t n_seen, Random* random) {
  std::vector<kvevict_token_range> ranges;
  const size_t most = random->OneOf(6) ? 64 : random->In(1, 6);
  for (uint32_t at = 0; ranges.size() < most && at < n_seen;) {
    kvevict_token_range range = KVEVICT_TOKEN_RANGE_INIT;
    range.first = at + (random->OneOf(2) ? 0 : random->In(0, n_seen / 8));
    range.end = range.first + random->In(0, n_seen / 3 + 1);
    if (random->OneOf(12)) range.end = UINT32_MAX;
    range.rank = static_cast<int32_t>(random->In(0, 4)) - 2;
    if (random->OneOf(12)) range.rank = random->Pick({INT32_MIN, INT32_MAX});
    at = range.end;
    ranges.push_back(range);
  }
  return ranges;
}

// One layer's part of a scoring call on both sides.
struct ScoreCase {
  uint32_t layer;
  std::vector<uint32_t> counts;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_signal_inputs host_inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  std::unique_ptr<Buffer> token_counts = {};
  std::unique_ptr<Buffer> scores = {};
  std::vector<float> expected = {};

  uint32_t n_tokens() const {
    return *std::max_element(counts.begin(), counts.end());
  }
};

kvevict_score_job JobOf(const ScoreCase& c, const RandomModel& model) {
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.layer = c.layer;
  job.n_tokens = c.n_tokens();
  job.n_seen = model.Logical();
  if (model.IsRagged()) job.token_counts = c.counts.data();
  job.scores_len = c.expected.size();
  return job;
}

// Compares the GPU's scores of one call's layers with the CPU's.
void ScoreTogether(const Gpu& gpu, Random* random, RandomModel* model,
                   std::vector<ScoreCase>* cases, Report* report) {
  std::vector<kvevict_score_job> jobs;
  std::vector<kvevict_score_job> host_jobs;
  for (ScoreCase& c : *cases) {
    c.expected.resize(c.counts.size() * c.n_tokens());
    c.scores = std::make_unique<Buffer>(gpu, c.expected.size() * sizeof(float));
    const RandomLayer& cache = model->cache(c.layer);
    host_jobs.push_back(JobOf(c, *model));
    host_jobs.back().view = &cache.host_view();
    host_jobs.back().inputs = &c.host_inputs;
    host_jobs.back().scores = c.expected.data();
    jobs.push_back(host_jobs.back());
    jobs.back().view = &cache.device_view();
    jobs.back().inputs = &c.inputs;
    jobs.back().scores = c.scores->pointer<float>();
    if (!model->IsRagged()) continue;
    c.token_counts =
        std::make_unique<Buffer>(gpu, c.counts.size() * sizeof(uint32_t));
    c.token_counts->Write(c.counts.data(), c.token_counts->n_bytes());
    jobs.back().token_counts = c.token_counts->pointer<uint32_t>();
  }
  const kvevict_workspace sizes =
      WorkspaceOf(model->plan(), KVEVICT_OPERATION_SCORE);
  const Buffer workspace(
      gpu, random->OneOf(2) ? sizes.least_bytes : sizes.best_bytes);
  Check(kvevict_score(model->plan(), jobs.data(), jobs.size(),
                      workspace.pointer<void>(), workspace.n_bytes(),
                      model->NextStream()));
  model->Synchronize();
  const HostWorkspace host(
      WorkspaceBytes(model->host_plan(), KVEVICT_OPERATION_SCORE));
  Check(kvevict_score(model->host_plan(), host_jobs.data(), host_jobs.size(),
                      host.memory(), host.n_bytes(), nullptr));
  for (size_t at = 0; at < cases->size(); ++at) {
    const ScoreCase& c = (*cases)[at];
    const std::vector<float> got = c.scores->ReadAll<float>();
    if (cases->size() > 1 && cases->size() < 9 && !model->IsRagged()) {
      Check(kvevict_score(model->plan(), &jobs[at], 1,
                          workspace.pointer<void>(), workspace.n_bytes(),
                          gpu.stream()));
      const std::vector<float> alone = c.scores->ReadAll<float>();
      report->FailIf(std::memcmp(alone.data(), got.data(),
                                 got.size() * sizeof(float)) != 0,
                     fmt::format("layer {}: alone it has other scores", at));
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t head = i / c.n_tokens();
      if (i % c.n_tokens() >= c.counts[head]) continue;  // any value
      if (ScoreError(model->policy(), got[i], c.expected[i]) <= 1.0) continue;
      report->Fail(
          fmt::format("layer {}, {} together: score {} is {} on the "
                      "GPU, {} on the CPU",
                      c.layer, cases->size(), i, got[i], c.expected[i]));
      break;
    }
  }
}

// Replaces the drawn numbers by the GPU's.
void LendScores(const Gpu& gpu, Random* random, RandomModel* model,
                EvictInput* input, Report* report) {
  const size_t most = random->Pick({1u, 3u, uint32_t{KVEVICT_MAX_JOBS}});
  std::vector<ScoreCase> cases;
  const auto score = [&] {
    if (cases.empty()) return;
    ScoreTogether(gpu, random, model, &cases, report);
    for (const ScoreCase& c : cases) {
      const std::vector<float> got = c.scores->ReadAll<float>();
      LayerScores* const scores = &input->scores[c.layer];
      for (size_t h = 0; h < c.counts.size(); ++h) {
        std::copy_n(&got[h * c.n_tokens()], c.n_tokens(),
                    &scores->values[h * scores->stride]);
      }
    }
    cases.clear();
  };
  const uint32_t least = model->by_attention() ? model->policy().window : 1;
  for (uint32_t l = 0; l < model->geometry().n_layers; ++l) {
    if (!model->OwnsCache(l)) continue;
    ScoreCase c = {l, model->Counts(l)};
    if (*std::min_element(c.counts.begin(), c.counts.end()) < least) continue;
    if (model->by_attention()) {
      c.inputs.queries = &input->windows[l]->device;
      c.host_inputs.queries = &input->windows[l]->host;
    }
    input->rows[l].Lend(true, &c.inputs);
    input->rows[l].Lend(false, &c.host_inputs);
    if (input->rows[l].reference) {
      input->rows[l].reference->LendToDoor(true, &c.inputs);
      input->rows[l].reference->LendToDoor(false, &c.host_inputs);
    }
    cases.push_back(std::move(c));
    if (cases.size() == most) score();
  }
  score();
}

EvictInput DrawInput(const Gpu& gpu, Random* random, RandomModel* model,
                     Report* report) {
  EvictInput input;
  const uint32_t n_layers = model->geometry().n_layers;
  if (random->OneOf(2)) input.protect = DrawProtected(*model, random);
  if (random->OneOf(2)) input.ranges = DrawRanges(model->Logical(), random);
  input.rows.resize(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (model->IsFull(l)) input.rows[l] = DrawRows(gpu, random, *model, l);
  }
  if (!model->takes_rows()) {
    for (uint32_t l = 0; model->by_given_weights() && l < n_layers; ++l) {
      for (LayerInputs* const side : {&input.device, &input.host}) {
        if (!model->IsFull(l)) {
          side->AddUnread();
          continue;
        }
        side->AddNothing();
        input.rows[l].Lend(side == &input.device, side->last());
      }
    }
    return input;
  }
  const uint32_t window = model->policy().window;
  const bool has_windows = model->by_attention() && model->Logical() >= window;
  input.scores.resize(n_layers);
  input.windows.resize(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (!model->IsFull(l)) continue;
    LayerScores& scores = input.scores[l];
    scores.stride = std::max(1u, model->Stored(l)) + random->In(0, 3);
    scores.n_heads = model->takes_sums() && !random->OneOf(3)
                         ? model->geometry().layer(l).n_q_heads
                         : model->n_kv_heads(l);
    scores.values =
        RandomScores(random, size_t{scores.n_heads} * scores.stride);
    if (has_windows) {
      input.windows[l] = model->Queries(l, model->Logical() - window, window);
    }
  }
  if (model->lends_scores() && has_windows == model->by_attention()) {
    LendScores(gpu, random, model, &input, report);
  }
  const bool hands_over =
      has_windows && (!model->observes() || random->OneOf(3));
  const bool uses_own = model->observes_sums() && !random->OneOf(4);
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (!model->IsFull(l)) {
      input.device.AddUnread();
      input.host.AddUnread();
      continue;
    }
    LayerScores& scores = input.scores[l];
    const auto add = [&](const void* address, LayerInputs* inputs) {
      if (uses_own) {
        inputs->AddNothing();
      } else if (model->takes_sums()) {
        inputs->AddSums(address, scores.stride, scores.n_heads);
      } else {
        inputs->AddScores(address, scores.stride);
      }
    };
    add(scores.values.data(), &input.host);
    if (!model->lends_scores()) {
      scores.buffer =
          std::make_unique<Buffer>(gpu, scores.values.size() * sizeof(float));
      scores.buffer->Write(scores.values.data(), scores.buffer->n_bytes());
      add(scores.buffer->pointer<float>(), &input.device);
    } else if (hands_over && !(model->observes() && random->OneOf(2))) {
      input.device.AddWindow(input.windows[l]->device);
    } else {
      input.device.AddNothing();
    }
    input.rows[l].Lend(true, input.device.last());
    input.rows[l].Lend(false, input.host.last());
    if (input.rows[l].reference) {
      input.rows[l].reference->LendToEviction(input.device.last());
    }
  }
  // The GPU may need no inputs.
  if (model->lends_scores() && !hands_over && !model->takes_given_rows()) {
    input.device = LayerInputs();
  }
  return input;
}

kvevict_evict_options OptionsOf(const EvictInput& input,
                                const LayerInputs& layers) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions =
      input.protect.empty() ? nullptr : input.protect.data();
  options.protected_positions_len = input.protect.size();
  options.ranges = input.ranges.empty() ? nullptr : input.ranges.data();
  options.ranges_len = input.ranges.size();
  layers.Lend(&options);
  return options;
}

struct WholeReport {
  kvevict_evict_report sums = KVEVICT_EVICT_REPORT_INIT;
  std::vector<kvevict_list_report> lists;

  WholeReport(const kvevict_plan* plan, const kvevict_sequence* sequence,
              uint32_t n_layers) {
    const kvevict_layer_info last = LayerOf(plan, n_layers - 1);
    lists.resize(last.first_list + last.n_lists, KVEVICT_LIST_REPORT_INIT);
    Check(kvevict_sequence_report(sequence, &sums, lists.data(), lists.size()));
  }
  // Scores that are no mass of the GPU's signal may be one when they are given.
  bool IsLike(const WholeReport& given) const {
    return std::memcmp(&sums, &given.sums, sizeof(sums)) == 0 &&
           std::equal(
               lists.begin(), lists.end(), given.lists.begin(),
               given.lists.end(),
               [](const kvevict_list_report& a, const kvevict_list_report& b) {
                 return a.layer == b.layer &&
                        a.tokens_before == b.tokens_before &&
                        a.tokens_after == b.tokens_after &&
                        (std::isnan(a.mass_kept) ||
                         (a.mass_kept == b.mass_kept &&
                          a.largest_mass_evicted == b.largest_mass_evicted));
               });
  }
};

// Nobody reads the view of a layer without a full cache.
kvevict_view UnreadView() {
  kvevict_view view;
  std::memset(&view, 0xEE, sizeof(view));
  view.struct_size = sizeof(view);
  return view;
}

}  // namespace

bool EvictModel(const Gpu& gpu, Random* random, RandomModel* model,
                Report* report) {
  if (model->Logical() == 0) return false;
  const uint32_t room = model->Room();
  const uint32_t n_layers = model->geometry().n_layers;
  const EvictInput input = DrawInput(gpu, random, model, report);
  std::vector<kvevict_view> views(n_layers, UnreadView());
  std::vector<kvevict_view> host_views = views;
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (!model->IsFull(l)) continue;
    views[l] = model->cache(l).device_view();
    host_views[l] = model->cache(l).host_view();
  }
  kvevict_evict_options options = OptionsOf(input, input.device);
  kvevict_evict_options on_host = OptionsOf(input, input.host);
  options.by_table = on_host.by_table =
      model->has_tables() && !random->OneOf(4);
  const UndoMemory undo(gpu, random, *model, views, host_views, report);
  undo.Lend(&options, &on_host);
  const kvevict_workspace sizes =
      WorkspaceOf(model->plan(), KVEVICT_OPERATION_EVICT);
  const Buffer workspace(
      gpu, random->OneOf(3) ? sizes.least_bytes : sizes.best_bytes);
  const kvevict_status status = model->Run([&](kvevict_stream stream) {
    return kvevict_sequence_evict(model->sequence(), views.data(), views.size(),
                                  &options, workspace.pointer<void>(),
                                  workspace.n_bytes(), stream);
  });
  const std::string message =
      status == KVEVICT_OK ? "" : kvevict_last_error_message();
  model->Synchronize();
  if (status == KVEVICT_ERROR_DEVICE || status == KVEVICT_ERROR_INTERNAL) {
    throw std::runtime_error(message);
  }
  if (status != KVEVICT_OK && model->by_attention()) {
    ExpectAlike(*model, report);  // custom may see nothing wrong
    return false;
  }

  const HostWorkspace host(
      WorkspaceBytes(model->twin_plan(), KVEVICT_OPERATION_EVICT));
  const kvevict_status host_status = kvevict_sequence_evict(
      model->twin(), host_views.data(), host_views.size(), &on_host,
      host.memory(), host.n_bytes(), nullptr);
  if (status != host_status) {
    throw std::runtime_error(fmt::format(
        "{} on the GPU: {}; {} on the CPU: {}", kvevict_status_name(status),
        message, kvevict_status_name(host_status),
        host_status == KVEVICT_OK ? "" : kvevict_last_error_message()));
  }
  const WholeReport got(model->plan(), model->sequence(), n_layers);
  const WholeReport expected(model->twin_plan(), model->twin(), n_layers);
  report->FailIf(!got.IsLike(expected), "the reports differ");
  for (uint32_t l = 0; l < n_layers && options.by_table != 0; ++l) {
    if (model->OwnsCache(l)) report->Expect(model->cache(l).TakeTables());
  }
  ExpectAlike(*model, report);
  const bool evicted = status == KVEVICT_OK && got.sums.evicted != 0;
  if (evicted && undo.device != nullptr && !random->OneOf(3)) {
    // Tokens that come meanwhile stay.
    if (random->OneOf(2)) model->Decode(std::min(room, random->In(0, 3)));
    UndoBoth(undo, model, views, host_views, report);
  }
  return evicted;
}

}  // namespace kvevict::gpu
