#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/random_model.h"

namespace kvevict::gpu {
namespace {

constexpr double kRelativeError = 1e-4;  // as doors_check.cc says
constexpr double kAbsoluteError = 1e-30;

bool AreClose(float a, float b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  return std::abs(double{a} - b) <=
         kRelativeError * std::abs(double{b}) + kAbsoluteError;
}

// Numbers with ties, NaN, infinities and what else is rare.
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
  const uint32_t one_of = n > 500 ? 3 : 30;  // more than go in a launch
  for (uint32_t i = 0; i < n; ++i) {
    if (random->OneOf(one_of)) slots.push_back(static_cast<int32_t>(i));
  }
  return slots;
}

// ---- An eviction of both sides ----

// What both get besides their caches.
struct EvictInput {
  std::vector<int32_t> protect;
  std::vector<float> scores;
  uint64_t head_stride = 0;
  uint64_t layer_stride = 0;

  kvevict_evict_options Options(const float* scores_address) const {
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.protected_positions = protect.empty() ? nullptr : protect.data();
    options.protected_positions_len = protect.size();
    if (scores_address == nullptr) return options;
    options.scores = scores_address;
    options.scores_len = scores.size();
    options.scores_head_stride = head_stride;
    options.scores_layer_stride = layer_stride;
    return options;
  }
};

// The GPU's scores of a layer, which are held against the CPU's.
std::vector<float> ScoreLayer(const Gpu& gpu, const RandomModel& model,
                              uint32_t layer, Report* report) {
  const uint32_t n_tokens = model.Stored(layer);
  const uint32_t window = model.policy().obs_window;
  const size_t n = size_t{model.geometry().n_kv_heads} * n_tokens;
  const QueryRows queries =
      model.Queries(layer, model.Logical() - window, window);
  const RandomLayer& cache = model.cache(layer);
  const Buffer scores(gpu, n * sizeof(float));
  const Buffer workspace(gpu,
                         WorkspaceBytes(model.plan(), KVEVICT_OPERATION_SCORE));
  Check(Score(
      {model.plan(), layer, n_tokens, &cache.device_view(), &queries.device},
      scores.pointer<float>(), n,
      {workspace.pointer<void>(), workspace.n_bytes(), gpu.stream()}));
  std::vector<float> got = scores.ReadAll<float>();
  std::vector<float> expected(n);
  const HostWorkspace host(
      WorkspaceBytes(model.host_plan(), KVEVICT_OPERATION_SCORE));
  Check(Score(
      {model.host_plan(), layer, n_tokens, &cache.host_view(), &queries.host},
      expected.data(), n, {host.memory(), host.n_bytes()}));
  for (size_t i = 0; i < n; ++i) {
    if (AreClose(got[i], expected[i])) continue;
    report->Fail(
        fmt::format("layer {}: score {} is {} on the GPU, {} on the "
                    "CPU",
                    layer, i, got[i], expected[i]));
    break;
  }
  return got;
}

// Some, and now and then the first one behind those that the last eviction
// listed.
std::vector<int32_t> DrawProtected(const RandomModel& model, Random* random) {
  std::vector<int32_t> positions = RandomSlots(random, model.Logical());
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(model.sequence(), 0, &memory));
  if (random->OneOf(2) && memory.n_listed < model.Stored(0)) {
    int32_t edge = 0;
    Check(kvevict_sequence_position_of_slot(model.twin(), 0, 0, memory.n_listed,
                                            &edge));
    const auto place =
        std::lower_bound(positions.begin(), positions.end(), edge);
    if (place == positions.end() || *place != edge) {
      positions.insert(place, edge);
    }
  }
  return positions;
}

EvictInput DrawInput(const Gpu& gpu, const RandomModel& model, Random* random,
                     Report* report) {
  EvictInput input;
  if (random->OneOf(2)) input.protect = DrawProtected(model, random);
  if (!model.twin_takes_scores()) return input;
  const kvevict_geometry& g = model.geometry();
  input.head_stride = g.max_tokens + random->In(0, 3);
  input.layer_stride = input.head_stride * g.n_kv_heads + random->In(0, 3);
  input.scores = RandomScores(random, input.layer_stride * g.n_layers);
  for (uint32_t l = 0; l < g.n_layers && model.by_attention(); ++l) {
    const uint32_t n_tokens = model.Stored(l);
    if (!model.OwnsCache(l) || n_tokens < model.policy().obs_window) continue;
    const std::vector<float> scores = ScoreLayer(gpu, model, l, report);
    for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
      std::copy_n(
          &scores[size_t{h} * n_tokens], n_tokens,
          &input.scores[l * input.layer_stride + h * input.head_stride]);
    }
  }
  return input;
}

void ExpectSameCaches(const RandomModel& model, Report* report) {
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    if (!model.OwnsCache(l)) continue;
    const std::string difference = model.cache(l).Compare(model.Stored(l));
    report->FailIf(!difference.empty(),
                   fmt::format("layer {}: {}", l, difference));
    model.cache(l).Upload();  // rows that may hold anything are alike again
  }
}

std::vector<int32_t> Positions(const kvevict_sequence* sequence, uint32_t layer,
                               uint32_t kv_head, uint32_t n_tokens) {
  std::vector<int32_t> positions(n_tokens);
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(sequence, layer, kv_head,
                                        positions.data(), n_tokens, &n));
  return positions;
}

void ExpectSamePositions(const RandomModel& model, Report* report) {
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    for (uint32_t h = 0; h < model.geometry().n_kv_heads; ++h) {
      const uint32_t n = model.Stored(l);
      report->FailIf(Positions(model.sequence(), l, h, n) !=
                         Positions(model.twin(), l, h, n),
                     fmt::format("layer {}, head {}: positions differ", l, h));
    }
  }
}

bool SameReport(const kvevict_evict_report& a, const kvevict_evict_report& b) {
  return a.evicted == b.evicted && a.bytes_before == b.bytes_before &&
         a.bytes_after == b.bytes_after && a.tokens_before == b.tokens_before &&
         a.tokens_after == b.tokens_after && a.blocks_freed == b.blocks_freed;
}

// True if tokens went.
bool Evict(const Gpu& gpu, const RandomModel& model, Random* random,
           Report* report) {
  if (model.Logical() == 0) return false;
  const EvictInput input = DrawInput(gpu, model, random, report);
  std::vector<kvevict_view> views;
  std::vector<kvevict_view> host_views;
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    views.push_back(model.cache(l).device_view());
    host_views.push_back(model.cache(l).host_view());
  }
  const Buffer scores(gpu, input.scores.size() * sizeof(float));
  scores.Write(input.scores.data(), scores.n_bytes());
  const kvevict_evict_options options = input.Options(
      model.by_attention() ? nullptr : scores.pointer<const float>());
  const Buffer workspace(gpu,
                         WorkspaceBytes(model.plan(), KVEVICT_OPERATION_EVICT));
  kvevict_evict_report got{};
  got.struct_size = sizeof(got);
  const kvevict_status status = kvevict_sequence_evict(
      model.sequence(), views.data(), views.size(), &options,
      workspace.pointer<void>(), workspace.n_bytes(), &got);
  const std::string message =
      status == KVEVICT_OK ? "" : kvevict_last_error_message();
  gpu.Synchronize();
  if (status == KVEVICT_ERROR_DEVICE || status == KVEVICT_ERROR_INTERNAL) {
    throw std::runtime_error(message);
  }
  if (status != KVEVICT_OK && model.by_attention()) {
    ExpectSameCaches(model, report);  // custom may see nothing wrong
    return false;
  }

  const HostWorkspace host(
      WorkspaceBytes(model.twin_plan(), KVEVICT_OPERATION_EVICT));
  const kvevict_evict_options on_host =
      input.Options(model.twin_takes_scores() ? input.scores.data() : nullptr);
  kvevict_evict_report expected{};
  expected.struct_size = sizeof(expected);
  const kvevict_status host_status = kvevict_sequence_evict(
      model.twin(), host_views.data(), host_views.size(), &on_host,
      host.memory(), host.n_bytes(), &expected);
  if (status != host_status) {
    throw std::runtime_error(fmt::format("{} on the GPU: {}; {} on the CPU",
                                         kvevict_status_name(status), message,
                                         kvevict_status_name(host_status)));
  }
  report->FailIf(status == KVEVICT_OK && !SameReport(got, expected),
                 "the reports differ");
  ExpectSamePositions(model, report);
  ExpectSameCaches(model, report);
  return got.evicted != 0;
}

// ---- The doors of a layer ----

std::vector<int32_t> SelectOnGpu(const Gpu& gpu, const RandomModel& model,
                                 uint32_t layer, uint32_t n_tokens,
                                 const std::vector<float>& scores,
                                 const std::vector<int32_t>& protect,
                                 kvevict_status* status) {
  const Buffer in(gpu, scores.size() * sizeof(float));
  in.Write(scores.data(), in.n_bytes());
  const size_t capacity = size_t{model.geometry().n_kv_heads} * n_tokens;
  const Buffer keep(gpu, capacity * sizeof(int32_t));
  const Buffer workspace(
      gpu, SelectBytes(model.context(), n_tokens, model.geometry().n_kv_heads));
  uint32_t n_keep = 0;
  *status =
      Select({model.context(), model.plan(), layer, n_tokens,
              in.pointer<float>(), scores.size(), protect},
             keep.pointer<int32_t>(), capacity, &n_keep,
             {workspace.pointer<void>(), workspace.n_bytes(), gpu.stream()});
  std::vector<int32_t> lists = keep.ReadAll<int32_t>();
  lists.resize(capacity / n_tokens * n_keep);
  return lists;
}

// Slots in any order, some of them more than once.
void Reorder(const Gpu& gpu, const RandomModel& model, uint32_t layer,
             uint32_t n_tokens, Random* random, Report* report) {
  RandomLayer& cache = model.cache(layer);
  const uint32_t n_slots = random->In(0, n_tokens);
  const uint32_t n_lists = random->OneOf(2) ? 1 : model.geometry().n_kv_heads;
  std::vector<int32_t> slots(size_t{n_lists} * n_slots);
  for (int32_t& slot : slots) {
    slot = static_cast<int32_t>(random->In(0, n_tokens - 1));
  }
  const OneMove on_host(cache.host_view(), n_tokens, slots.data(), slots.size(),
                        n_lists);
  const HostWorkspace workspace(on_host.ReorderBytes(model.host_context()));
  Check(on_host.Reorder(model.host_context(),
                        {workspace.memory(), workspace.n_bytes()}));
  const Buffer lists(gpu, std::max(slots.size(), size_t{1}) * sizeof(int32_t));
  lists.Write(slots.data(), slots.size() * sizeof(int32_t));
  const OneMove move(cache.device_view(), n_tokens, lists.pointer<int32_t>(),
                     slots.size(), n_lists);
  const size_t n_bytes = move.ReorderBytes(model.context());
  const Buffer scratch(gpu, std::max(n_bytes, size_t{1}));
  Check(move.Reorder(model.context(),
                     {scratch.pointer<void>(), n_bytes, gpu.stream()}));
  gpu.Synchronize();
  const std::string difference = cache.Compare(n_tokens);
  report->FailIf(!difference.empty(), "reordered: " + difference);
  cache.Upload();
}

// kvevict_select() and kvevict_compact().
void UseDoors(const Gpu& gpu, const RandomModel& model, Random* random,
              Report* report) {
  const kvevict_geometry& g = model.geometry();
  const kvevict_scope scope = model.policy().scope;
  const uint32_t layer =
      scope == KVEVICT_SCOPE_MODEL ? 0 : random->In(0, g.n_layers - 1);
  if (model.Stored(layer) == 0) return;
  const uint32_t n_tokens = random->In(1, model.Stored(layer));
  size_t n_scores = size_t{g.n_kv_heads} * n_tokens;
  if (scope == KVEVICT_SCOPE_MODEL) n_scores *= g.n_layers;
  if (model.policy().kind == KVEVICT_POLICY_STREAMING_LLM) n_scores = 0;
  const std::vector<float> scores = RandomScores(random, n_scores);
  const std::vector<int32_t> protect = RandomSlots(random, n_tokens);
  kvevict_status status = KVEVICT_OK;
  std::vector<int32_t> keep =
      SelectOnGpu(gpu, model, layer, n_tokens, scores, protect, &status);

  std::vector<int32_t> expected(size_t{g.n_kv_heads} * n_tokens);
  const HostWorkspace workspace(
      SelectBytes(model.host_context(), n_tokens, g.n_kv_heads));
  uint32_t n_keep = 0;
  report->FailIf(Select({model.host_context(), model.host_plan(), layer,
                         n_tokens, scores.data(), n_scores, protect},
                        expected.data(), expected.size(), &n_keep,
                        {workspace.memory(), workspace.n_bytes()}) != status,
                 "only one side selects");
  if (status != KVEVICT_OK) return;
  const uint32_t n_lists = scope == KVEVICT_SCOPE_KV_HEAD ? g.n_kv_heads : 1;
  expected.resize(size_t{n_lists} * n_keep);
  keep.resize(expected.size());
  report->FailIf(keep != expected, "keep lists of the same scores differ");

  RandomLayer& cache = model.cache(layer);
  const Buffer lists(gpu, expected.size() * sizeof(int32_t));
  lists.Write(expected.data(), lists.n_bytes());
  const OneMove move(cache.device_view(), n_tokens, lists.pointer<int32_t>(),
                     expected.size(), n_lists);
  const OneMove on_host(cache.host_view(), n_tokens, expected.data(),
                        expected.size(), n_lists);
  size_t n_bytes = move.CompactBytes(model.context());
  if (random->OneOf(2)) n_bytes = 0;  // it is optional
  const Buffer scratch(gpu, std::max(n_bytes, size_t{1}));
  Check(move.Compact(model.context(),
                     {n_bytes > 0 ? scratch.pointer<void>() : nullptr, n_bytes,
                      gpu.stream()}));
  gpu.Synchronize();
  Check(on_host.Compact(model.host_context(), {}));
  const std::string difference = cache.Compare(n_keep);
  report->FailIf(!difference.empty(), "compacted: " + difference);
  cache.Upload();
  Reorder(gpu, model, layer, n_tokens, random, report);
}

// ---- A life ----

void Live(const Gpu& gpu, uint64_t seed, Report* report) {
  Random random(seed);
  RandomModel model(gpu, &random);
  if (!model.MakePlans()) return;
  constexpr int kSteps = 12;
  int n_evictions = 0;
  for (int step = 0; step < kSteps; ++step) {
    switch (random.In(0, 9)) {
      case 0:
        model.Trim();
        break;
      case 1:
        model.Decode(random.In(1, 5));
        break;
      case 2:
        UseDoors(gpu, model, &random, report);
        break;
      case 3:
        if (random.OneOf(3)) model.Reset();
        break;
      case 4:
      case 5:
      case 6:
        if (random.OneOf(2)) model.Append(model.Room());
        n_evictions += Evict(gpu, model, &random, report);
        break;
      default:
        model.Append(random.In(0, model.Room()));
    }
    model.ExpectSameLengths(report);
  }
  report->Note("evictions", n_evictions);
}

}  // namespace

void CheckRandom(const Gpu& gpu, const Effort& effort, Report* report) {
  const uint64_t n = effort.full ? 24 : 12;
  for (uint64_t seed = effort.seed; seed < effort.seed + n; ++seed) {
    report->Check(fmt::format("random life, seed {}", seed),
                  [&] { Live(gpu, seed, report); });
  }
}

}  // namespace kvevict::gpu
