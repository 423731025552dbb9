// Attention as a model decodes: a call for each layer, in the stream's order.
#include <fmt/format.h>

#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

struct Attention {
  CacheShape cache;
  uint32_t n_queries;
};

// What the closures of the work own.
struct AttentionState {
  Cache cache;
  Queries queries;
  Queries out;
  Buffer workspace;
  std::vector<kvevict_attention_job> jobs;  // layer by layer
};

kvevict_dtype QueryDtype(const Format& format) {
  const bool is_same =
      format.dtype == KVEVICT_DTYPE_F16 || format.dtype == KVEVICT_DTYPE_F32;
  return is_same ? format.dtype : KVEVICT_DTYPE_BF16;
}

std::vector<kvevict_attention_job> Jobs(const Cache& cache,
                                        const Queries& queries,
                                        const Queries& out, uint32_t n) {
  const CacheShape& s = cache.shape();
  std::vector<kvevict_attention_job> jobs;
  for (uint32_t l = 0; l < s.model.n_layers; ++l) {
    for (uint32_t sequence = 0; sequence < s.n_sequences; ++sequence) {
      kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
      job.n_tokens = s.n_tokens;
      job.view = &cache.view(l, sequence);
      job.queries = &queries.of(l, sequence);
      job.out = &out.of(l, sequence);
      job.n_q_heads = s.model.n_q_heads;
      job.n_queries = n;
      jobs.push_back(job);
    }
  }
  return jobs;
}

Work MakeAttention(const Bed& bed, const Attention& a) {
  const Model& m = a.cache.model;
  const kvevict_dtype q_dtype = QueryDtype(a.cache.format);
  const uint32_t n_sequences = a.cache.n_sequences;
  const auto state = std::make_shared<AttentionState>(AttentionState{
      Cache(bed.gpu, a.cache, bed.seed),
      Queries(bed.gpu, m, n_sequences, a.n_queries, q_dtype, bed.seed + 1),
      Queries(bed.gpu, m, n_sequences, a.n_queries, q_dtype, bed.seed + 2),
      Buffer(bed.gpu, 0),
      {}});
  state->jobs = Jobs(state->cache, state->queries, state->out, a.n_queries);
  kvevict_workspace bytes = KVEVICT_WORKSPACE_INIT;
  bed.library.Check(bed.library.attend_workspace(
      bed.context.get(), state->jobs.data(), n_sequences, &bytes));
  const auto workspace = std::make_shared<Buffer>(bed.gpu, bytes.best_bytes);
  Work work;
  work.run = [bed, state, workspace, n_sequences] {
    for (size_t i = 0; i < state->jobs.size(); i += n_sequences) {
      bed.library.Check(bed.library.attend(
          bed.context.get(), &state->jobs[i], n_sequences,
          workspace->pointer<void>(), workspace->n_bytes(), bed.gpu.stream()));
    }
  };
  work.bytes = a.cache.RowBytes();
  work.flops = uint64_t{4} * m.n_layers * n_sequences * m.n_q_heads *
               a.n_queries * a.cache.n_tokens * m.head_dim;
  return work;
}

}  // namespace

std::vector<Row> AttentionRows(const Scale& scale) {
  std::vector<Row> rows;
  const auto add = [&](const Attention& a, const std::string& slots) {
    rows.push_back({"attention",
                    fmt::format("attend by layer: {}, {}, {}, {} queries",
                                a.cache.model.name, slots, a.cache.format.name,
                                a.n_queries),
                    By::kGraph, a.cache.RowBytes(),
                    [a](const Bed& bed) { return MakeAttention(bed, a); }});
  };
  for (const uint32_t n_queries : {1u, 4u, 2u, 3u}) {
    for (const Format& format : {kBf16, kFp8, kU8, kU4, kQ8, kKivi, kF16}) {
      for (const Model& model : {k128, k256Group6, k256Group8}) {
        for (const uint32_t n_tokens : {2048u, 16384u}) {
          Attention a{{scale.Of(model)}, n_queries};
          a.cache.n_tokens = scale.Tokens(n_tokens);
          a.cache.format = format;
          add(a, fmt::format("{} slots", n_tokens));
        }
      }
    }
  }
  const auto add_batch = [&](const Model& model, const Format& format,
                             uint32_t n_queries, uint32_t n_tokens = 2048) {
    Attention a{{scale.Of(model)}, n_queries};
    a.cache.n_sequences = scale.Sequences(32);
    a.cache.n_tokens = scale.Tokens(n_tokens);
    a.cache.format = format;
    add(a, fmt::format("32 sequences of {} slots", n_tokens));
  };
  // One query of every format and model first, then batches.
  constexpr int kOfOneQuery = 7 * 3 * 2;
  std::vector<Row> single = std::move(rows);
  rows.assign(single.begin(), single.begin() + kOfOneQuery);
  for (const Model& model : {k128, k256Group6, k256Group8}) {
    for (const Format& format : {kBf16, kFp8, kU4, kKivi, kF16, kU8, kQ8}) {
      add_batch(model, format, 1);
    }
    for (const uint32_t n_queries : {4u, 2u, 3u}) {
      add_batch(model, kBf16, n_queries);
    }
  }
  rows.insert(rows.end(), single.begin() + kOfOneQuery, single.end());
  for (const uint32_t n_queries : {1u, 16u, 64u}) {
    Attention a{{scale.Of(k128)}, n_queries};
    a.cache.n_tokens = scale.Tokens(16384);
    a.cache.format = n_queries == 1 ? kF32 : kBf16;
    add(a, "16384 slots");
  }
  for (const uint32_t n_queries : {4u, 2u, 3u}) {
    for (const Format& format : {kFp8, kU8, kU4, kQ8, kKivi}) {
      for (const Model& model : {k128, k256Group6, k256Group8}) {
        for (const uint32_t n_tokens : {2048u, 16384u}) {
          add_batch(model, format, n_queries, n_tokens);
        }
      }
    }
  }
  return rows;
}

}  // namespace kvevict::gpu::rows
