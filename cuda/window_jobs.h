// What the layouts of a window's layers allow.
#ifndef KVEVICT_CUDA_WINDOW_JOBS_H_
#define KVEVICT_CUDA_WINDOW_JOBS_H_

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

// Checks that elements are aligned for loads.
Status CheckJobAligned(const ScoreJob& job, const kvevict_layer_geometry& g);

// Whether the layout of a job's rows suits the tensor cores.
bool LayoutAllowsMma(const ScoreJob& job);

// Whether its keys' layout suits window_attention_few.cu: loads of 16 bytes
// that lie end to end.
bool LayoutAllowsFew(const ScoreJob& job);

// Whether two layers go in one launch.
bool GoTogether(const ScoreJob& a, const ScoreJob& b);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_WINDOW_JOBS_H_
