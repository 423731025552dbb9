#include "tools/llama/ggml_type.h"

#include <bit>
#include <cstring>

namespace kvevict::tools {
namespace {

constexpr size_t kBlockElems = 32;

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "f32", 1, 4},
    {GgmlType::kF16, "f16", 1, 2},
    {GgmlType::kBf16, "bf16", 1, 2},
    // A binary16 scale and minimum, then 16 bytes: the first 16 elements are
    // their low halves, the others the high ones.
    {GgmlType::kQ4_1, "q4_1", kBlockElems, 4 + kBlockElems / 2},
    // A binary16 scale, then 32 signed bytes.
    {GgmlType::kQ8_0, "q8_0", kBlockElems, 2 + kBlockElems},
};

struct KnownName {
  uint32_t type;
  const char* name;
};

// Common types that are refused by name.
constexpr KnownName kUnreadTypes[] = {
    {2, "q4_0"},    {6, "q5_0"},  {7, "q5_1"},  {9, "q8_1"},  {10, "q2_K"},
    {11, "q3_K"},   {12, "q4_K"}, {13, "q5_K"}, {14, "q6_K"}, {20, "iq4_nl"},
    {23, "iq4_xs"}, {24, "i8"},   {28, "f64"},
};

uint16_t LoadU16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void DequantizeQ4WithMinimum(const uint8_t* block, std::span<float> out) {
  constexpr size_t kHalf = kBlockElems / 2;
  for (size_t i = 0; i < out.size(); i += kBlockElems) {
    const float scale = HalfToFloat(LoadU16(block));
    const float minimum = HalfToFloat(LoadU16(block + 2));
    for (size_t j = 0; j < kHalf; ++j) {
      const uint8_t both = block[4 + j];
      out[i + j] = scale * static_cast<float>(both & 0xf) + minimum;
      out[i + kHalf + j] = scale * static_cast<float>(both >> 4) + minimum;
    }
    block += 4 + kHalf;
  }
}

void DequantizeQ8(const uint8_t* block, std::span<float> out) {
  for (size_t i = 0; i < out.size(); i += kBlockElems) {
    const float scale = HalfToFloat(LoadU16(block));
    const auto* quants = reinterpret_cast<const int8_t*>(block + 2);
    for (size_t j = 0; j < kBlockElems; ++j) {
      out[i + j] = scale * static_cast<float>(quants[j]);
    }
    block += 2 + kBlockElems;
  }
}

}  // namespace

const GgmlTypeInfo* FindGgmlType(uint32_t type) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == type) return &info;
  }
  return nullptr;
}

std::string GgmlTypeName(uint32_t type) {
  const char* name = nullptr;
  if (const GgmlTypeInfo* info = FindGgmlType(type)) name = info->name;
  for (const KnownName& known : kUnreadTypes) {
    if (known.type == type) name = known.name;
  }
  const std::string number = std::to_string(type);
  return name == nullptr ? "type " + number
                         : std::string(name) + " (" + number + ")";
}

void Dequantize(GgmlType type, std::span<const uint8_t> blocks,
                std::span<float> out) {
  const uint8_t* src = blocks.data();
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(out.data(), src, out.size() * sizeof(float));
      return;
    case GgmlType::kF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = HalfToFloat(LoadU16(src + 2 * i));
      }
      return;
    case GgmlType::kBf16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = std::bit_cast<float>(uint32_t{LoadU16(src + 2 * i)} << 16);
      }
      return;
    case GgmlType::kQ4_1:
      DequantizeQ4WithMinimum(src, out);
      return;
    case GgmlType::kQ8_0:
      DequantizeQ8(src, out);
      return;
  }
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // Zero and subnormals: mantissa * 2^-24.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  // Infinity and NaN keep an all-ones exponent; the bias grows by 112.
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

}  // namespace kvevict::tools
