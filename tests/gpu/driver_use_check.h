// How the library uses the driver, which only the mock driver can tell.
#ifndef KVEVICT_TESTS_GPU_DRIVER_USE_CHECK_H_
#define KVEVICT_TESTS_GPU_DRIVER_USE_CHECK_H_

#include "tests/gpu/checks.h"

namespace kvevict::gpu {

// Executing calls neither wait nor allocate nor load. Contexts are left as they
// were, policy none queues nothing, and captured calls must be prepared.
void CheckDriverUse(const Gpu& gpu, const Effort& effort, Report* report);

// Query rows of many layers and of long windows take few launches.
void CheckQueryRows(const Gpu& gpu, const Effort& effort, Report* report);

// Launches that multiply all pairs of keys come in parts.
void CheckLaunchParts(const Gpu& gpu, const Effort& effort, Report* report);

// Calls that wait or compile are refused while a stream is captured, and spoil
// nothing.
void CheckCaptureUse(const Gpu& gpu, const Effort& effort, Report* report);

// Two CUcontexts in a process, and two threads in one.
void CheckContexts(const Gpu& gpu, const Effort& effort, Report* report);

// A fault ends a CUcontext, or it goes before what was made in it.
void CheckLostContexts(const Gpu& gpu, const Effort& effort, Report* report);

// After preparing a plan, no call compiles or loads code: every policy, over
// dtypes and layouts, by the doors and by a sequence.
void CheckPrepared(const Gpu& gpu, const Effort& effort, Report* report);

// Every failure of the driver becomes a status and a sentence, and leaks
// nothing.
void CheckDriverFailures(const Gpu& gpu, const Effort& effort, Report* report);
void CheckQueueFailures(const Gpu& gpu, const Effort& effort, Report* report);

// Checks which kernels move rows with which workspace, and debug's findings.
void CheckMovedRows(const Gpu& gpu, const Effort& effort, Report* report);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_DRIVER_USE_CHECK_H_
