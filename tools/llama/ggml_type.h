// Element types of GGUF tensors.
#ifndef KVEVICT_TOOLS_LLAMA_GGML_TYPE_H_
#define KVEVICT_TOOLS_LLAMA_GGML_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvevict::tools {

// Element types of GGUF tensors, with the numbers ggml gives them.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kBf16 = 30
};

// Elements are stored in blocks: one for the plain types, 32 for q4_1 and q8_0.
struct GgmlTypeInfo {
  GgmlType type;
  const char* name;
  size_t block_elems;
  size_t block_bytes;
};

// NULL if this engine does not read the type.
const GgmlTypeInfo* FindGgmlType(uint32_t type);

// "q4_K (12)" or "type 99", for error messages.
std::string GgmlTypeName(uint32_t type);

// Decodes out.size() elements, a whole number of blocks, from `blocks`.
void Dequantize(GgmlType type, std::span<const uint8_t> blocks,
                std::span<float> out);

// IEEE binary16 to f32, exact.
float HalfToFloat(uint16_t half);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_GGML_TYPE_H_
