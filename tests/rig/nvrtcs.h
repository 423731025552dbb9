// The real libnvrtcs of this machine: those in the folders that the environment's
// KVEVICT_NVRTC_DIR names, separated by colons (ctest sets it), and the system's.
#ifndef KVEVICT_TESTS_RIG_NVRTCS_H_
#define KVEVICT_TESTS_RIG_NVRTCS_H_

#include <string>
#include <vector>

#include "cuda/jit.h"

namespace kvevict::cuda {

// One per version, the newest first.
std::vector<const Nvrtc*> FindNvrtcs();

// Of them, those that compile for this architecture.
std::vector<const Nvrtc*> FindNvrtcsFor(int sm);

// "11.8"
std::string VersionOf(const Nvrtc& nvrtc);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_NVRTCS_H_
