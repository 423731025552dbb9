// Modules and launches, for the functions of all drivers and those of driver 12.
#ifndef KVEVICT_TESTS_RIG_MOCK_CODE_H_
#define KVEVICT_TESTS_RIG_MOCK_CODE_H_

#include "tests/rig/mock/state.h"

namespace kvevict::mock {

// Loads PTX into the current context.
CUresult LoadModule(Call& call, const char* ptx, Module** out);

// Whether the image is PTX that the settings' driver and device can take;
// unlike LoadModule it needs no context.
CUresult CheckImage(Call& call, const void* image);

CUresult FindFunction(Call& call, Module& module, const std::string& name,
                      Function** out);

}  // namespace kvevict::mock

#endif  // KVEVICT_TESTS_RIG_MOCK_CODE_H_
