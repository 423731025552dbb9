// Attention summed over any number of query rows, and within chunks, by the
// kernels of score_window.cc.
#ifndef KVEVICT_CUDA_SCORE_WINDOW_H_
#define KVEVICT_CUDA_SCORE_WINDOW_H_

#include <cstdint>

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

// The scratch, at the start of ScoreArgs::scratch.
CheckedSize QuerySumScratchBytes(const kvevict_layer_geometry& g,
                                 uint32_t n_layers, uint32_t n_tokens);

// Compiles what SumQueries() launches.
Status PrepareQuerySums(const Context& context, const kvevict_layer_geometry& g,
                        const ScoreTraits& traits);

// See ScoreOp::check, for jobs with queries that go together.
Status CheckQuerySums(const Context& context, Stream stream,
                      const ScoreArgs& args, Jobs<ScoreJob> jobs);

// sums = f32 [n_q_heads, tokens.most] of each job, one after the other: the
// causal softmax weights of each query head, summed over the job's rows.
Status SumQueries(const Context& context, Stream stream, const ScoreArgs& args,
                  Jobs<ScoreJob> jobs, uint64_t sums);

// The parts of a ScoreOp that scores each chunk of policy.block tokens by its
// own queries.
ScratchNeeds ChunkScratchBytes(const Context& context, const LayerSize& size);
Status PrepareChunks(const Context& context, const kvevict_layer_geometry& g,
                     const Policy& policy, const ScoreTraits& traits);
Status CheckChunks(const Context& context, Stream stream,
                   const ScoreArgs& args);
Status ScoreChunks(const Context& context, Stream stream,
                   const ScoreArgs& args);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_SCORE_WINDOW_H_
