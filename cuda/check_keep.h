// Checks a caller's keep lists on the device.
#ifndef KVEVICT_CUDA_CHECK_KEEP_H_
#define KVEVICT_CUDA_CHECK_KEEP_H_

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

enum class KeepOrder { kAscending, kAny };

// With debug set, returns INVALID_ARGUMENT unless the slots of a job's keep
// lists are below n_tokens and in that order. Waits. `name` is the caller's
// name of the lists.
Status CheckKeepLists(const Context& context, Stream stream, const MoveJob& job,
                      KeepOrder order, const char* name);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_CHECK_KEEP_H_
