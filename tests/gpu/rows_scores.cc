// Scores: window attention by dtype, page size and length, and redundancy.
#include <fmt/format.h>

#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

struct Scoring {
  CacheShape cache;
  const char* policy;
  kvevict_dtype q_dtype;
  uint32_t n_passes;  // over the keys
};

constexpr uint32_t kScoresWindow = 64;

struct ScoresState {
  Cache cache;
  Queries queries;
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
      Queries(bed.gpu, m, 1, kScoresWindow, s.q_dtype, bed.seed + 1),
      Buffer(bed.gpu, sizeof(float) * n_scores * m.n_layers),
      Buffer(bed.gpu,
             bed.library.WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE)),
      plan,
      {},
      {}});
  state->inputs.assign(m.n_layers, KVEVICT_SIGNAL_INPUTS_INIT);
  state->jobs.assign(m.n_layers, KVEVICT_SCORE_JOB_INIT);
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    state->inputs[l].queries = &state->queries.of(l);
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
  // Redundancy has products of its own, which nobody counts.
  work.flops = s.n_passes < 2
                   ? 0
                   : uint64_t{2} * s.n_passes * m.n_layers * m.n_q_heads *
                         kScoresWindow * s.cache.n_tokens * m.head_dim;
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
  const char* const snapkv = scale.full ? "snapkv:budget=2048,window=64"
                                        : "snapkv:budget=80,window=64";
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
          {cache, scale.full ? "r-kv:budget=2048" : "r-kv:budget=80",
           KVEVICT_DTYPE_BF16, 1});
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
