// Arrays in the safetensors format.
#ifndef KVEVICT_TOOLS_REPLAY_SAFETENSORS_H_
#define KVEVICT_TOOLS_REPLAY_SAFETENSORS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/replay/tensor.h"

namespace kvevict::tools {

// Reads all arrays of a file. Throws std::runtime_error that names the file,
// the array and the error.
std::vector<Tensor> ReadSafetensors(const std::string& path,
                                    std::span<const uint8_t> bytes);

// The bytes of a file before those of the arrays, which follow in this order.
std::string SafetensorsHeader(std::span<const Tensor> tensors);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_SAFETENSORS_H_
