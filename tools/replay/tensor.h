// An array in a file.
#ifndef KVEVICT_TOOLS_REPLAY_TENSOR_H_
#define KVEVICT_TOOLS_REPLAY_TENSOR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

struct Tensor {
  std::string name;
  std::string file;
  std::string type;  // as the file names it: "<f4", "BF16"
  std::vector<uint64_t> shape;
  std::span<const uint8_t> bytes;  // C order; valid as long as the file is open

  // Nothing if it is not f32, f16 or bf16.
  std::optional<kvevict_dtype> dtype() const;

  // Throws std::runtime_error that names the file, the tensor and its shape.
  [[noreturn]] void Fail(const std::string& message) const;
};

// "[2, 96, 64]"
std::string ShapeText(std::span<const uint64_t> shape);

// Bytes of an array, or nothing if they are 2^64 or more.
std::optional<uint64_t> ArrayBytes(std::span<const uint64_t> shape,
                                   uint64_t element_bytes);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_TENSOR_H_
