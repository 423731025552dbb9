// Models whose layers differ, layer by layer and in one call.
#include <fmt/format.h>

#include <vector>

#include "tests/gpu/checks.h"
#include "tests/gpu/random_evict.h"

namespace kvevict::gpu {
namespace {

kvevict_layer_geometry FullLayer(uint32_t n_q_heads, uint32_t n_kv_heads,
                                 uint32_t k_head_dim, uint32_t v_head_dim,
                                 kvevict_dtype q_dtype,
                                 kvevict_dtype kv_dtype) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = n_q_heads;
  layer.n_kv_heads = n_kv_heads;
  layer.k_head_dim = k_head_dim;
  layer.v_head_dim = v_head_dim;
  layer.q_dtype = q_dtype;
  layer.k_dtype = layer.v_dtype = kv_dtype;
  return layer;
}

// Heads, head sizes, dtypes and scales differ; some layers are alike.
Geometry UnlikeLayers() {
  const kvevict_dtype f32 = KVEVICT_DTYPE_F32;
  const kvevict_dtype f16 = KVEVICT_DTYPE_F16;
  const kvevict_dtype bf16 = KVEVICT_DTYPE_BF16;
  const kvevict_layer_geometry wide = FullLayer(8, 2, 64, 64, bf16, bf16);
  const kvevict_layer_geometry odd = FullLayer(3, 3, 33, 7, f32, f16);
  kvevict_layer_geometry scaled = wide;
  scaled.softmax_scale = 1.0f;
  return {9,
          140,
          {UnreadLayer(KVEVICT_LAYER_CACHE_WINDOW), wide, wide,
           UnreadLayer(KVEVICT_LAYER_CACHE_NONE), odd, scaled,
           UnreadLayer(KVEVICT_LAYER_CACHE_WINDOW), wide,
           FullLayer(4, 1, 16, 32, f32, f32)}};
}

// Budgets around 30, into which the window of 8 fits.
std::vector<uint32_t> HeadBudgets(const Geometry& g) {
  std::vector<uint32_t> budgets;
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    for (uint32_t h = 0; g.IsFull(l) && h < g.layer(l).n_kv_heads; ++h) {
      budgets.push_back(20 + 7 * h + l);
    }
  }
  return budgets;
}

// Prefills, decodes by a captured step and evicts, twice.
void LiveWithUnlikeLayers(const Gpu& gpu, const ModelCase& model_case,
                          uint64_t seed, Report* report) {
  Random random(seed);
  RandomModel model(gpu, &random, model_case);
  if (!model.MakePlans()) {
    report->Fail("both sides refuse the plan");
    return;
  }
  for (const uint32_t n_tokens : {70u, 25u}) {
    model.Append(n_tokens);
    model.Decode(4);
    model.ExpectSameLengths(report);
    report->FailIf(!EvictModel(gpu, &random, &model, report),
                   "nothing was evicted");
    model.Decode(3);
    model.ExpectSameLengths(report);
  }
}

// ---- Scores ----

using Scores = std::vector<std::vector<float>>;

struct ScoredLayer {
  uint32_t layer;
  QueryRows queries;
  Buffer scores;
};

// Scores all layers in one call or in one call each.
Scores ScoreOnGpu(const Gpu& gpu, const RandomModel& model,
                  const std::vector<ScoredLayer>& layers, bool together) {
  std::vector<kvevict_signal_inputs> inputs(layers.size(),
                                            KVEVICT_SIGNAL_INPUTS_INIT);
  std::vector<kvevict_score_job> jobs(layers.size(), KVEVICT_SCORE_JOB_INIT);
  for (size_t i = 0; i < layers.size(); ++i) {
    const ScoredLayer& l = layers[i];
    inputs[i].queries = &l.queries.device;
    jobs[i].layer = l.layer;
    jobs[i].n_tokens = model.Stored(l.layer);
    jobs[i].view = &model.cache(l.layer).device_view();
    jobs[i].inputs = &inputs[i];
    jobs[i].scores = l.scores.pointer<float>();
    jobs[i].scores_len = l.scores.n_bytes() / sizeof(float);
    const std::vector<float> none(jobs[i].scores_len, -1.0f);
    l.scores.Write(none.data(), l.scores.n_bytes());
  }
  const Buffer workspace(gpu,
                         WorkspaceBytes(model.plan(), KVEVICT_OPERATION_SCORE));
  const size_t at_once = together ? jobs.size() : 1;
  for (size_t i = 0; i < jobs.size(); i += at_once) {
    Check(kvevict_score(model.plan(), &jobs[i], at_once,
                        workspace.pointer<void>(), workspace.n_bytes(),
                        gpu.stream()));
  }
  Scores scores;
  for (const ScoredLayer& l : layers) {
    scores.push_back(l.scores.ReadAll<float>());
  }
  return scores;
}

// Layers of one call do not depend on each other or on their order.
void ScoreTogetherAndAlone(const Gpu& gpu, const char* policy, uint64_t seed,
                           Report* report) {
  Random random(seed);
  RandomModel model(gpu, &random, {UnlikeLayers(), ParsePolicy(policy)});
  if (!model.MakePlans()) throw std::runtime_error("there is no plan");
  model.Append(75);
  const uint32_t window = model.policy().window;
  std::vector<ScoredLayer> layers;
  for (uint32_t l = model.geometry().n_layers; l-- > 0;) {
    if (!model.IsFull(l)) continue;
    layers.push_back({l, model.Queries(l, 75 - window, window),
                      Buffer(gpu, sizeof(float) * 75 * model.n_kv_heads(l))});
  }
  const Scores alone = ScoreOnGpu(gpu, model, layers, false);
  report->FailIf(ScoreOnGpu(gpu, model, layers, true) != alone,
                 "together they score otherwise");
}

}  // namespace

void CheckLayers(const Gpu& gpu, const Effort& effort, Report* report) {
  for (const char* policy :
       {"snapkv:budget=30,window=8,scope=head",
        "snapkv:budget=30,window=8,scope=layer,group=max,order=pool-reduce",
        "snapkv:budget=30,window=8,scope=model", "pyramidkv:budget=30,window=8",
        "knorm:budget=30,sink=2", "keydiff:budget=30,sink=2", "r-kv:budget=30",
        "knorm:sink=0,budget=30,redundancy=0.5,scope=layer",
        "streaming-llm:budget=30", "expected-attention:budget=30",
        "expected-attention:budget=30,pool=max5,order=pool-reduce,"
        "weight=given",
        "triattention:budget=30,sink=2",
        "streaming-llm:budget=30,merge=values,merge_fraction=0.6",
        "knorm:budget=30,sink=2,scope=model,merge=pivot",
        "triattention:sink=0,budget=30,scope=model,pool=avg3,order=pool-reduce",
        "custom:sink=0,budget=30,scope=head"}) {
    report->Check(fmt::format("unlike layers: {}", policy), [&] {
      LiveWithUnlikeLayers(gpu, {UnlikeLayers(), ParsePolicy(policy)},
                           effort.seed, report);
    });
  }
  for (const bool observes : {false, true}) {
    report->Check(fmt::format("unlike layers, budgets of heads, rows {}",
                              observes ? "observed" : "handed over"),
                  [&] {
                    ModelCase c = {UnlikeLayers(),
                                   ParsePolicy("snapkv:window=8,scope=head"),
                                   HeadBudgets(UnlikeLayers())};
                    c.observes = observes;
                    LiveWithUnlikeLayers(gpu, c, effort.seed, report);
                  });
  }
  for (const char* policy :
       {"snapkv:budget=30,window=8",
        "snapkv:budget=30,window=8,group=max,order=pool-reduce"}) {
    report->Check(
        fmt::format("unlike layers, scored in one call: {}", policy),
        [&] { ScoreTogetherAndAlone(gpu, policy, effort.seed, report); });
  }
}

}  // namespace kvevict::gpu
