// The real libnvrtcs of this machine: the system's, and those in the folders of
// KVEVICT_NVRTC_DIR, separated by colons (ctest sets it).
#ifndef KVEVICT_TESTS_RIG_NVRTCS_H_
#define KVEVICT_TESTS_RIG_NVRTCS_H_

#include <string>
#include <vector>

#include "cuda/jit.h"

namespace kvevict::cuda {

// One per version, the newest first.
std::vector<const Nvrtc*> FindNvrtcs();

// Returns those of them that compile for this architecture.
std::vector<const Nvrtc*> FindNvrtcsFor(int sm);

// "11.8"
std::string VersionOf(const Nvrtc& nvrtc);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_NVRTCS_H_
