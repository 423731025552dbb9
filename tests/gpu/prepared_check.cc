// After kvevict_context_prepare() nothing is compiled or loaded, whatever uses the
// plan.
#include <fmt/format.h>

#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/model.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kTokens = 72;

bool FitsBiases(const std::string& policy) {
  return policy.find("bias-values") != std::string::npos;
}

uint64_t Loads() {
  return mock::Calls("cuLibraryLoadData") + mock::Calls("cuModuleLoadData");
}

// The log-sum-exps of a window's query rows, f32 [n_q_heads, window].
kvevict_plane LsePlane(const Buffer& rows, uint32_t window) {
  kvevict_plane plane{};
  plane.data = rows.address();
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = int64_t{window} * int64_t{sizeof(float)};
  return plane;
}

// Keys or queries do not begin at a multiple of 16 bytes, so tensor cores
// cannot read them.
void ScoreRowsThatLieOddly(const Gpu& gpu, const Twin& twin, const Side& side,
                           bool keys) {
  kvevict_view view = twin.device_views()[0];
  kvevict_plane queries =
      twin.DeviceQueries(0, kTokens - side.obs_window() - 1);
  (keys ? view.k : queries).data += 4;
  const size_t n = size_t{twin.shape().n_kv_heads} * kTokens;
  const Buffer scores(gpu, n * sizeof(float));
  const Buffer workspace(gpu,
                         WorkspaceBytes(side.plan(), KVEVICT_OPERATION_SCORE));
  Check(Score({side.plan(), 0, kTokens, &view, &queries},
              scores.pointer<float>(), n,
              {workspace.pointer<void>(), workspace.n_bytes(), gpu.stream()}));
  gpu.Synchronize();
}

void CallTheDoors(const Gpu& gpu, Twin* twin, Side* side,
                  const kvevict_plane& row_lse) {
  const Shape& shape = twin->shape();
  const oracle_kind kind = side->policy().kind;
  if (kind == ORACLE_SNAPKV || kind == ORACLE_PYRAMIDKV) {
    side->Score(0, kTokens);
    side->Score(0, kTokens, &row_lse);
    for (const bool keys : {false, true}) {
      ScoreRowsThatLieOddly(gpu, *twin, *side, keys);
    }
  }
  size_t n_scores = size_t{shape.n_kv_heads} * kTokens;
  if (side->policy().scope == KVEVICT_SCOPE_MODEL) n_scores *= shape.n_layers;
  if (kind == ORACLE_NONE || kind == ORACLE_STREAMING_LLM) {
    n_scores = 0;  // nothing is ranked
  }
  const std::vector<float> scores(n_scores, 1.0f);
  for (const bool protects : {false, true}) {
    const std::vector<int32_t> keep = side->Select(
        0, scores, kTokens,
        protects ? std::vector<int32_t>{2} : std::vector<int32_t>());
    const uint32_t n_lists = LayerOf(side->plan(), 0).n_lists;
    for (const bool with_workspace : {false, true}) {
      side->Compact(0, kTokens, keep, n_lists, with_workspace);
    }
    side->Reorder(0, kTokens, keep, n_lists);
  }
}

void LiveASequence(const Gpu& gpu, Side* side, const Twin& twin,
                   const kvevict_plane& row_lse) {
  side->Prefill(0, kTokens, 30);
  const uint32_t window = side->obs_window();
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    Check(Observe(side->sequence(), {l, nullptr, &row_lse}, window,
                  kTokens - window, side->stream()));
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  const int32_t protect[] = {20};
  // The sinks and recents of streaming-llm leave no room for another.
  if (side->policy().kind != ORACLE_STREAMING_LLM) {
    options.protected_positions = protect;
    options.protected_positions_len = 1;
  }
  const Buffer scores(gpu, size_t{twin.shape().n_layers} *
                               twin.shape().n_kv_heads * kTokens *
                               sizeof(float));
  const oracle_policy& policy = side->policy();
  LayerInputs inputs;
  // Any rows will do as reference queries, and as means of queries.
  std::vector<kvevict_plane> rows(twin.shape().n_layers);
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    if (policy.kind == ORACLE_CUSTOM) {
      inputs.AddScores(scores.pointer<float>() +
                           size_t{l} * twin.shape().n_kv_heads * kTokens,
                       kTokens);
      continue;
    }
    inputs.AddNothing();
    if (policy.reference == 0) continue;
    rows[l] = twin.DeviceQueries(l, 0);
    inputs.last()->reference_queries = &rows[l];
    inputs.last()->n_reference_rows = policy.reference;
    inputs.last()->query_mean = &rows[l];
  }
  inputs.Lend(&options);
  side->Evict(&options);
  side->Prefill(kTokens, 3, 1);
  side->Evict(&options);
  side->Positions(0, 0);
  Check(kvevict_sequence_reset(side->sequence(), side->stream()));
}

struct PlanCase {
  const char* policy;
  kvevict_dtype q_dtype;
  kvevict_dtype kv_dtype;
  // Which caches it is checked with. A policy with a fit uses only one, since fits take
  // many launches.
  bool in_one = true;
  bool paged = true;
};

// A scorer has a variant for each form of a policy (how rows, groups and lists
// reduce its scores), dtypes and shape, which take most of the time to compile.
// So each form has other dtypes, and one has the shape of evictable.h, whose
// variants other checks compile too.
constexpr PlanCase kPlanCases[] = {
    {"none", kF32, kF16},
    {"streaming-llm:budget=40", kF32, kF32},
    {"snapkv:budget=40,window=16,scope=head", kBf16, kBf16},
    {"snapkv:budget=40,window=4,scope=head", kF32, kF32},  // few rows
    {"snapkv:budget=40,window=4,scope=layer,group=max", kF16, kF16},
    {"snapkv:budget=40,window=4,scope=model,group=max,order=pool-reduce", kF32,
     kBf16},
    {"snapkv:budget=40,window=4,fit=bias-values", kBf16, kBf16,
     /*in_one=*/false},
    {"pyramidkv:budget=40,window=16", kBf16, kBf16},
    {"expected-attention:sink=0,budget=40,reference=2,fit=bias-values", kF32,
     kBf16, true, /*paged=*/false},
    {"random:sink=0,budget=40,scope=head", kF32, kBf16},
    {"custom:sink=0,budget=40,scope=layer", kF32, kF16}};

// One context serves both caches, since it holds the kernels for both.
void CheckPlan(const Gpu& gpu, const PlanCase& c, Report* report) {
  Shape shape = {
      "", 2, 4, 2, 32, kTokens, c.q_dtype, c.kv_dtype, Layout::kTokenMajor};
  if (FitsBiases(c.policy)) {
    shape.n_layers = shape.n_kv_heads = 1;
    shape.n_q_heads = 2;
    shape.head_dim = 16;
    shape.most_bias = 1.0f;
  }
  Twin in_one(gpu, shape, 1);
  shape.layout = Layout::kPaged;
  Twin paged(gpu, shape, 1);
  Side side(&gpu, &in_one, c.policy);
  const Buffer lse(gpu,
                   size_t{shape.n_q_heads} * side.obs_window() * sizeof(float));
  const std::vector<float> ones(lse.n_bytes() / sizeof(float), 1.0f);
  lse.Write(ones.data(), lse.n_bytes());
  const kvevict_plane row_lse = LsePlane(lse, side.obs_window());

  Check(kvevict_context_prepare(side.context(), side.plan()));
  const uint64_t before = Loads();
  report->FailIf(before == 0, "preparing loads nothing");
  for (Twin* twin : {&in_one, &paged}) {
    if (!(twin == &paged ? c.paged : c.in_one)) continue;
    side.UseCache(twin);
    CallTheDoors(gpu, twin, &side, row_lse);
    LiveASequence(gpu, &side, *twin, row_lse);
    report->FailIf(Loads() != before,
                   fmt::format("{} of {} more modules: {}", Loads() - before,
                               before, twin == &paged ? "paged" : "in one"));
  }
}

}  // namespace

void CheckPrepared(const Gpu& gpu, const Effort&, Report* report) {
  for (const PlanCase& c : kPlanCases) {
    report->Check(std::string("prepared: ") + c.policy,
                  [&] { CheckPlan(gpu, c, report); });
  }
}

}  // namespace kvevict::gpu
