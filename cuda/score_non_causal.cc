// Attention within chunks: the launches of score_window.cc, with a chunk in
// place of a split.
#include "cuda/ops.h"
#include "cuda/score_window.h"

namespace kvevict::cuda {

const ScoreOp kOp_score_non_causal = {ScoreChunks, ChunkScratchBytes,
                                      CheckChunks, PrepareChunks};

}  // namespace kvevict::cuda
