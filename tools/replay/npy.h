// Arrays in NumPy's .npy format.
#ifndef KVEVICT_TOOLS_REPLAY_NPY_H_
#define KVEVICT_TOOLS_REPLAY_NPY_H_

#include <cstdint>
#include <span>
#include <string>

#include "tools/replay/tensor.h"

namespace kvevict::tools {

// Reads an array of any type in C order. Throws std::runtime_error that names
// the file, the place and the error.
Tensor ReadNpy(const std::string& path, std::span<const uint8_t> bytes);

// The bytes of a file before those of the array.
std::string NpyHeader(const std::string& type, std::span<const uint64_t> shape);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_NPY_H_
