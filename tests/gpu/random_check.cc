#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/random_evict.h"

namespace kvevict::gpu {
namespace {

// ---- The doors of a layer ----

std::vector<int32_t> SelectOnGpu(const Gpu& gpu, const RandomModel& model,
                                 uint32_t layer, uint32_t n_tokens,
                                 const std::vector<float>& scores,
                                 const std::vector<int32_t>& protect,
                                 kvevict_status* status) {
  const Buffer in(gpu, scores.size() * sizeof(float));
  in.Write(scores.data(), in.n_bytes());
  const size_t capacity = size_t{model.n_kv_heads(layer)} * n_tokens;
  const Buffer keep(gpu, capacity * sizeof(int32_t));
  const Buffer workspace(
      gpu, SelectBytes(model.context(), n_tokens, model.n_kv_heads(layer)));
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

// Slots in any order, some of them repeated.
void Reorder(const Gpu& gpu, const RandomModel& model, uint32_t layer,
             uint32_t n_tokens, Random* random, Report* report) {
  RandomLayer& cache = model.cache(layer);
  const uint32_t n_slots = random->In(0, n_tokens);
  const uint32_t n_lists = random->OneOf(2) ? 1 : model.n_kv_heads(layer);
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

// ---- Lists of different lengths ----

// Writes `counts` to the GPU.
Buffer CountsOn(const Gpu& gpu, const std::vector<uint32_t>& counts) {
  Buffer buffer(gpu, counts.size() * sizeof(uint32_t));
  buffer.Write(counts.data(), buffer.n_bytes());
  return buffer;
}

// The heads of a layer hold and keep different numbers of tokens.
struct UnevenLists {
  std::vector<uint32_t> held;
  std::vector<uint32_t> kept;
  std::vector<float> scores;
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;

  UnevenLists(Random* random, uint32_t n_heads, uint32_t most) {
    options.n_tokens = most;
    options.n_sink = random->In(0, 3);
    options.n_recent = random->In(0, 3);
    for (uint32_t h = 0; h < n_heads; ++h) {
      held.push_back(random->In(0, most));
      kept.push_back(random->In(
          std::min(held[h], options.n_sink + options.n_recent), held[h]));
    }
    scores = RandomScores(random, size_t{n_heads} * most);
    options.scores_len = scores.size();
    lists.n_lists = n_heads;
    lists.slots_len = scores.size();
    lists.list_stride = most;
    lists.count = *std::max_element(kept.begin(), kept.end());
  }
};

// Selects and compacts by such lists.
void UseUnevenDoors(const Gpu& gpu, const RandomModel& model, uint32_t layer,
                    uint32_t n_tokens, Random* random, Report* report) {
  const uint32_t n_heads = model.n_kv_heads(layer);
  UnevenLists on_host(random, n_heads, n_tokens);
  UnevenLists on_device = on_host;
  std::vector<int32_t> expected(on_host.scores.size());
  on_host.options.scores = on_host.scores.data();
  on_host.options.token_counts = on_host.held.data();
  on_host.lists.slots = expected.data();
  on_host.lists.counts = on_host.kept.data();
  const Buffer held = CountsOn(gpu, on_host.held);
  const Buffer kept = CountsOn(gpu, on_host.kept);
  const Buffer scores(gpu, on_host.scores.size() * sizeof(float));
  scores.Write(on_host.scores.data(), scores.n_bytes());
  const Buffer slots(gpu, expected.size() * sizeof(int32_t));
  on_device.options.scores = scores.pointer<float>();
  on_device.options.token_counts = held.pointer<uint32_t>();
  on_device.lists.slots = slots.pointer<int32_t>();
  on_device.lists.counts = kept.pointer<uint32_t>();

  const HostWorkspace host(
      SelectBytes(model.host_context(), n_tokens, n_heads));
  Check(kvevict_select(model.host_context(), &on_host.options, &on_host.lists,
                       host.memory(), host.n_bytes(), nullptr));
  const Buffer workspace(gpu, SelectBytes(model.context(), n_tokens, n_heads));
  Check(kvevict_select(model.context(), &on_device.options, &on_device.lists,
                       workspace.pointer<void>(), workspace.n_bytes(),
                       gpu.stream()));
  const std::vector<int32_t> got = slots.ReadAll<int32_t>();
  for (uint32_t h = 0; h < n_heads; ++h) {
    const auto list = static_cast<std::ptrdiff_t>(size_t{h} * n_tokens);
    report->FailIf(!std::equal(expected.begin() + list,
                               expected.begin() + list + on_host.kept[h],
                               got.begin() + list),
                   fmt::format("uneven lists, head {}: slots differ", h));
  }

  RandomLayer& cache = model.cache(layer);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_tokens;
  move.view = &cache.host_view();
  move.keep = &on_host.lists;
  move.token_counts = on_host.held.data();
  Check(kvevict_compact(model.host_context(), &move, 1, nullptr, 0, nullptr));
  move.view = &cache.device_view();
  move.keep = &on_device.lists;
  move.token_counts = held.pointer<uint32_t>();
  kvevict_workspace sizes = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_compact_workspace(model.context(), &move, 1, &sizes));
  const Buffer scratch(gpu, random->OneOf(2) ? 0 : sizes.best_bytes);
  Check(kvevict_compact(model.context(), &move, 1, scratch.pointer<void>(),
                        scratch.n_bytes(), gpu.stream()));
  gpu.Synchronize();
  const std::string difference = cache.Compare(on_host.kept);
  report->FailIf(!difference.empty(), "compacted unevenly: " + difference);
  cache.Upload();
}

// ---- Lists of the plan ----

uint32_t DrawFullLayer(const RandomModel& model, Random* random) {
  uint32_t layer = 0;
  do {
    layer = random->In(0, model.geometry().n_layers - 1);
  } while (!model.IsFull(layer));
  return layer;
}

// The rows that choose the layer's lists.
uint64_t RowsOf(const RandomModel& model, uint32_t layer) {
  if (model.policy().kind == ORACLE_STREAMING_LLM) return 0;
  if (model.policy().scope != KVEVICT_SCOPE_MODEL) {
    return model.n_kv_heads(layer);
  }
  uint64_t n_rows = 0;
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    if (model.IsFull(l)) n_rows += model.n_kv_heads(l);
  }
  return n_rows;
}

// Calls kvevict_select() and kvevict_compact().
void UseDoors(const Gpu& gpu, const RandomModel& model, Random* random,
              Report* report) {
  const kvevict_scope scope = model.policy().scope;
  const uint32_t layer = scope == KVEVICT_SCOPE_MODEL
                             ? model.first_full()
                             : DrawFullLayer(model, random);
  if (model.Stored(layer) == 0) return;
  const uint32_t n_tokens = random->In(1, model.Stored(layer));
  if (model.IsRagged() || random->OneOf(3)) {
    UseUnevenDoors(gpu, model, layer, n_tokens, random, report);
    Reorder(gpu, model, layer, n_tokens, random, report);
    return;
  }
  const uint32_t n_heads = model.n_kv_heads(layer);
  const size_t n_scores = RowsOf(model, layer) * n_tokens;
  const std::vector<float> scores = RandomScores(random, n_scores);
  const std::vector<int32_t> protect = RandomSlots(random, n_tokens);
  kvevict_status status = KVEVICT_OK;
  std::vector<int32_t> keep =
      SelectOnGpu(gpu, model, layer, n_tokens, scores, protect, &status);

  std::vector<int32_t> expected(size_t{n_heads} * n_tokens);
  const HostWorkspace workspace(
      SelectBytes(model.host_context(), n_tokens, n_heads));
  uint32_t n_keep = 0;
  report->FailIf(Select({model.host_context(), model.host_plan(), layer,
                         n_tokens, scores.data(), n_scores, protect},
                        expected.data(), expected.size(), &n_keep,
                        {workspace.memory(), workspace.n_bytes()}) != status,
                 "only one side selects");
  if (status != KVEVICT_OK) return;
  const uint32_t n_lists = LayerOf(model.plan(), layer).n_lists;
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

struct LifeCase {
  std::string policy;
  uint64_t seed;
  Much much = Much::kNothing;
  bool by_table = false;
};

struct Lived {
  uint32_t n_evictions = 0;
  uint32_t n_steps = 0;
};

// Ends without a step if both sides refuse the policy as it was drawn.
Lived Live(const Gpu& gpu, const LifeCase& c, Report* report) {
  Random random(c.seed);
  const ModelCase drawn = RandomCase(&random, c.policy, c.much, c.by_table);
  Lived lived;
  // Little or nothing would go.
  if (drawn.policy.budget > 0.8 * drawn.geometry.max_tokens) return lived;
  RandomModel model(gpu, &random, drawn);
  if (!model.MakePlans()) return lived;
  const uint32_t n_steps = c.much == Much::kNothing  ? 8
                           : c.much == Much::kLayers ? 2
                                                     : 4;
  for (; lived.n_steps < n_steps; ++lived.n_steps) {
    // The largest models do what they are there for.
    switch (c.much != Much::kNothing ? 4 : random.In(0, 9)) {
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
        if (random.OneOf(3)) {
          model.Reset();
        } else if (random.OneOf(2)) {
          model.EndPrompt();
        } else {
          model.Copy(report);
        }
        break;
      case 4:
      case 5:
      case 6:
        if (random.OneOf(2) || model.Logical() == 0) {
          model.Append(model.Room());
        }
        lived.n_evictions += EvictModel(gpu, &random, &model, report);
        break;
      default:
        model.Append(random.In(0, model.Room()));
    }
    model.ExpectSameLengths(report);
  }
  return lived;
}

std::vector<LifeCase> LifeCases(const Effort& effort) {
  std::vector<LifeCase> cases;
  const auto add = [&](const std::string& policy, Much much = Much::kNothing,
                       bool by_table = false) {
    cases.push_back(
        {policy, 1000 * effort.seed + cases.size(), much, by_table});
  };
  kvevict_policy_info info{};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    if (std::string_view(info.name) == "none") continue;
    for (int life = 0; life < (effort.full ? 4 : 1); ++life) add(info.name);
    if (effort.times > 1) add(info.name, Much::kTokens);
  }
  for (const char* const policy : {"snapkv", "h2o", "custom", "random"}) {
    add(policy);
  }
  for (const char* const policy : {"random", "streaming-llm", "random"}) {
    add(policy, Much::kNothing, /*by_table=*/true);
  }
  add("random", Much::kTokens, /*by_table=*/true);
  for (const char* const policy : {"knorm", "snapkv"}) {
    add(policy, Much::kLayers);
  }
  add("snapkv", Much::kTokens);
  add("custom", Much::kSelection);
  return cases;
}

}  // namespace

void CheckRandom(const Gpu& gpu, const Effort& effort, Report* report) {
  for (const LifeCase& c : LifeCases(effort)) {
    report->Check(
        fmt::format("random life, {}, seed {}", c.policy, c.seed), [&] {
          LifeCase next = c;
          Lived lived = Live(gpu, next, report);
          for (int again = 0; again < 100 && lived.n_evictions == 0; ++again) {
            next.seed += 1000000;
            lived = Live(gpu, next, report);
          }
          report->FailIf(lived.n_evictions == 0, "nothing was evicted");
          report->Note("evictions", lived.n_evictions);
        });
  }
}

}  // namespace kvevict::gpu
