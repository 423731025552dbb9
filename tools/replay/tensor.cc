#include "tools/replay/tensor.h"

#include <fmt/format.h>

#include <stdexcept>

namespace kvevict::tools {

std::optional<kvevict_dtype> Tensor::dtype() const {
  if (type == "<f4" || type == "F32") return KVEVICT_DTYPE_F32;
  if (type == "<f2" || type == "F16") return KVEVICT_DTYPE_F16;
  // NumPy has no bf16: ml_dtypes saves it as two bytes without a meaning.
  if (type == "<V2" || type == "|V2" || type == "BF16") {
    return KVEVICT_DTYPE_BF16;
  }
  return std::nullopt;
}

void Tensor::Fail(const std::string& message) const {
  throw std::runtime_error(fmt::format("{}: tensor '{}' {}: {}", file, name,
                                       ShapeText(shape), message));
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text;
  for (const uint64_t n : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(n);
  }
  return "[" + text + "]";
}

std::optional<uint64_t> ArrayBytes(std::span<const uint64_t> shape,
                                   uint64_t element_bytes) {
  uint64_t n_bytes = element_bytes;
  for (const uint64_t n : shape) {
    if (__builtin_mul_overflow(n_bytes, n, &n_bytes)) return std::nullopt;
  }
  return n_bytes;
}

}  // namespace kvevict::tools
