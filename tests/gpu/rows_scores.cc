// Scores: window attention by dtype, page size and length, other policies, redundancy.
#include <fmt/format.h>

#include <cmath>

#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

struct Scoring {
  CacheShape cache;
  std::string policy;
  kvevict_dtype q_dtype;
  uint32_t n_passes;     // over the keys
  uint32_t window = 64;  // 0: products that nobody counts
  bool has_lse = false;  // given, so one pass is enough
};

constexpr uint32_t kMostRows = 64;

struct ScoresState {
  Cache cache;
  Queries queries;
  Buffer lse;
  kvevict_plane lse_plane;
  Buffer scores;
  Buffer workspace;
  std::shared_ptr<kvevict_plan> plan;
  std::vector<kvevict_signal_inputs> inputs;
  std::vector<kvevict_score_job> jobs;
};

Work MakeScoring(const Bed& bed, const Scoring& s) {
  const Model& m = s.cache.model;
  const uint64_t n_scores = uint64_t{m.n_kv_heads} * s.cache.n_tokens;
  const std::shared_ptr<kvevict_plan> plan =
      PlanOf(bed, s.cache, s.q_dtype, s.policy);
  const auto state = std::make_shared<ScoresState>(ScoresState{
      Cache(bed.gpu, s.cache, bed.seed),
      Queries(bed.gpu, m, 1, kMostRows, s.q_dtype, bed.seed + 1),
      Buffer(bed.gpu, sizeof(float) * m.n_q_heads * kMostRows),
      KVEVICT_PLANE_INIT,
      Buffer(bed.gpu, sizeof(float) * n_scores * m.n_layers),
      Buffer(bed.gpu,
             bed.library.WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE)),
      plan,
      {},
      {}});
  state->inputs.assign(m.n_layers, KVEVICT_SIGNAL_INPUTS_INIT);
  state->jobs.assign(m.n_layers, KVEVICT_SCORE_JOB_INIT);
  // Rows of small logits have about this.
  const std::vector<float> lse(m.n_q_heads * kMostRows,
                               std::log(static_cast<float>(s.cache.n_tokens)));
  state->lse.Write(lse.data(), state->lse.n_bytes());
  state->lse_plane.data = state->lse.address();
  state->lse_plane.dtype = KVEVICT_DTYPE_F32;
  state->lse_plane.head_dim = 1;
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    state->inputs[l].queries = &state->queries.of(l);
    if (s.has_lse) state->inputs[l].row_lse = &state->lse_plane;
    kvevict_score_job& job = state->jobs[l];
    job.layer = l;
    job.n_tokens = s.cache.n_tokens;
    job.view = &state->cache.view(l);
    job.inputs = &state->inputs[l];
    job.scores = state->scores.pointer<float>() + l * n_scores;
    job.scores_len = n_scores;
  }
  Work work;
  work.run = [bed, state] {
    bed.library.Check(
        bed.library.score(state->plan.get(), state->jobs.data(),
                          state->jobs.size(), state->workspace.pointer<void>(),
                          state->workspace.n_bytes(), bed.gpu.stream()));
  };
  work.bytes = s.n_passes * s.cache.RowBytes() + state->scores.n_bytes();
  work.flops = uint64_t{2} * s.n_passes * m.n_layers * m.n_q_heads * s.window *
               s.cache.n_tokens * m.head_dim;
  return work;
}

}  // namespace

std::vector<Row> ScoreRows(const Scale& scale) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const Scoring& s) {
    rows.push_back({"scores", name, By::kGraph,
                    s.cache.RowBytes() + s.cache.RowBytes() / 8,
                    [s](const Bed& bed) { return MakeScoring(bed, s); }});
  };
  const std::string budget = fmt::format(":budget={}", scale.Tokens(2048));
  const std::string snapkv = "snapkv" + budget + ",window=64";
  const auto keys = [&](const Model& model, const Format& format) {
    CacheShape cache{scale.Of(model)};
    cache.n_tokens = scale.Tokens(16384);
    cache.format = format;
    cache.has_values = false;
    return cache;
  };
  for (const Model& model : {k256Group6, k256Group8, k128}) {
    for (const kvevict_dtype q : {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_BF16}) {
      add(fmt::format("score: {}, bf16 keys, {} queries", model.name,
                      q == KVEVICT_DTYPE_F32 ? "f32" : "bf16"),
          {keys(model, kBf16), snapkv, q, 2});
    }
  }
  for (const Format& format : {kBf16, kF32}) {
    const auto name = [&](const char* what) {
      return fmt::format("score{}: {}, {} keys", what, k128.name, format.name);
    };
    const CacheShape cache = keys(k128, format);
    if (format.dtype == KVEVICT_DTYPE_F32) {
      add(name("") + ", f32 queries", {cache, snapkv, format.dtype, 2});
    }
    add(name("") + ", log-sum-exps given",
        {cache, snapkv, format.dtype, 1, 64, true});
    add(name("") + ", window of 32",
        {cache, "snapkv" + budget + ",window=32", format.dtype, 2, 32});
    for (const char* policy : {"tova", "knorm", "keydiff", "lagkv", "cur"}) {
      Scoring s{cache, policy + budget, format.dtype, 1, 0};
      s.cache.has_values = *policy == 'l' || *policy == 'c';
      add(name((std::string(" by ") + policy).c_str()), s);
    }
  }
  for (const Model& model : {k128, k256Group6}) {
    for (const Format& format : {kFp8, kI8, kU8, kU4, kQ8, kKivi}) {
      add(fmt::format("score: {}, {} keys, bf16 queries", model.name,
                      format.name),
          {keys(model, format), snapkv, KVEVICT_DTYPE_BF16, 2});
    }
  }
  add(fmt::format("score: {}, fp8 keys, f32 queries", k256Group6.name),
      {keys(k256Group6, kFp8), snapkv, KVEVICT_DTYPE_F32, 2});
  for (const uint32_t block_size : {16u, 64u, 256u}) {
    for (const bool head_major : {false, true}) {
      CacheShape cache = keys(k128, kBf16);
      cache.block_size = block_size;
      cache.head_major = head_major;
      add(fmt::format("score: {}, blocks of {}, {}", k128.name, block_size,
                      head_major ? "[H, S, D]" : "[S, H, D]"),
          {cache, snapkv, KVEVICT_DTYPE_BF16, 2});
    }
  }
  for (const char* content : {"random", "around a mean"}) {
    for (const uint32_t n_tokens : {2176u, 4096u, 16384u}) {
      CacheShape cache = keys(k128, kBf16);
      cache.n_tokens = scale.Tokens(n_tokens);
      if (*content == 'a') cache.keys = Content::kAroundMean;
      add(fmt::format("r-kv: {}, {} tokens, {}", k128.name, n_tokens, content),
          {cache, "r-kv" + budget, KVEVICT_DTYPE_BF16, 1, 0});
    }
  }
  CacheShape longest =
      keys({"80 layers of 128, group 8", 80, 64, 8, 128}, kBf16);
  longest.n_tokens = scale.Tokens(131072);
  add("score: 80 layers of 128, group 8, 131072 tokens",
      {longest, snapkv, KVEVICT_DTYPE_BF16, 2});
  return rows;
}

}  // namespace kvevict::gpu::rows
