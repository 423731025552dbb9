// Decodes elements of rows of every dtype that can be scored.
#ifndef KVEVICT_CUDA_KERNELS_DTYPES_CUH_
#define KVEVICT_CUDA_KERNELS_DTYPES_CUH_

#include "device.cuh"
#include "params.h"
#include "row_address.cuh"

namespace kvevict::cuda {

// The dtypes that rows of this variant may have, a bit for each: KV_DTYPES if
// some are quantized, otherwise all that are not.
#ifdef KV_DTYPES
enum : uint32_t { kDTypesOfRows = KV_DTYPES };
#else
enum : uint32_t { kDTypesOfRows = kPlainDTypes };
#endif
enum : bool { kReadsQuantized = (kDTypesOfRows & ~kPlainDTypes) != 0 };

// Whether groups of tokens may share scales in quantized rows of this variant,
// or recent rows may follow: KV_TOKEN_GROUPS.
#ifdef KV_TOKEN_GROUPS
enum : bool { kReadsTokenGroups = true };
#else
enum : bool { kReadsTokenGroups = false };
#endif

template <int kDType>
struct DTypeTag {
  static constexpr int kValue = kDType;
  static constexpr bool kIsPlain = (kPlainDTypes >> kDType & 1) != 0;
  static constexpr uint32_t kBytes = kDType == kF32 ? 4 : kIsPlain ? 2 : 1;
  static constexpr uint32_t kPer16 = PerLoad(kDType);
  static constexpr DTypeFacts kFacts = FactsOf(kDType);
  // Blocks of 32 codes, each after its own scale.
  static constexpr bool kHasBlocks = kFacts.packing == Packing::kBlocks;
  static constexpr uint32_t kBlockBytes = IsNibbles(kDType) ? 18 : 34;
};

template <bool kIsUsed, int kDType, class Use>
KV_DEVICE void UseDType(const Use& use) {
  if constexpr (kIsUsed) use(DTypeTag<kDType>());
}

// Calls use() with the tag of a dtype that rows may have, or of a plain one.
template <class Use>
KV_DEVICE void WithDType(uint32_t dtype, const Use& use) {
#define KVEVICT_DTYPE(Name, text, id, ...) \
  if (dtype == k##Name) UseDType<(kDTypesOfRows >> id & 1) != 0, k##Name>(use);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
}
template <class Use>
KV_DEVICE void WithPlainDType(uint32_t dtype, const Use& use) {
#define KVEVICT_DTYPE(Name, text, id, ...) \
  if (dtype == k##Name) UseDType<(kPlainDTypes >> id & 1) != 0, k##Name>(use);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
}

// The exact value of a code of 8 or 4 bits: 2^23 plus the code, minus 2^23 and
// its zero.
KV_DEVICE float FromCode(uint32_t code, float zero) {
  return ToFloat<kF32>(0x4b000000u | code) - (8388608.0f + zero);
}

// The value of a code, before scale and minimum.
template <int kDType>
KV_DEVICE float ValueOfCode(uint32_t code) {
  constexpr DTypeFacts kFacts = FactsOf(kDType);
  constexpr CodeNumbers kCodes = kFacts.codes;
  if constexpr (kCodes.is_half_of_f16()) {
    return ToFloat<kF16>(code << 8);
  } else if constexpr (kCodes.is_float()) {
    // As f16 bits the value is too small by the difference of the biases, and NaN
    // is a number.
    constexpr auto kFactor = static_cast<float>(1u << (15 - kCodes.bias));
    const uint32_t size = code & 0x7f;
    const float value =
        ToFloat<kF16>((code & 0x80) << 8 | size << (10 - kCodes.fraction)) *
        kFactor;
    return size == 0x7f ? ToFloat<kF32>(kNaNBits) : value;
  } else {
    constexpr bool kIsSigned = kCodes.lowest < 0;
    // Bytes are two's complements, nibbles are above their lowest.
    if constexpr (kIsSigned && !IsNibbles(kDType)) {
      return FromCode(code ^ 0x80, 128.0f);
    }
    return FromCode(code,
                    kIsSigned ? static_cast<float>(-kCodes.lowest) : 0.0f);
  }
}

// Rounded as the CPU's kernels do.
template <int kDType>
KV_DEVICE float Scaled(uint32_t code, float scale, float minimum) {
  const float value = ValueOfCode<kDType>(code);
  if constexpr (FactsOf(kDType).minimum) {
    return Fma(value, scale, minimum);
  } else {
    return Multiply(value, scale);
  }
}

// The place of an element, relative to its row's first byte.
struct ElementPlace {
  int64_t offset;
  uint32_t shift;  // of a nibble in its byte
  int64_t block;   // where its block begins
  uint32_t element;
};

// Finds element i of rows with n_elements.
template <class Tag>
KV_DEVICE ElementPlace FindElement(Tag, const RowLayout& layout,
                                   uint32_t n_elements, uint32_t i) {
  if constexpr (Tag::kHasBlocks) {
    constexpr bool kNibbles = IsNibbles(Tag::kValue);
    const int64_t block = int64_t{i / 32} * Tag::kBlockBytes;
    const uint32_t code = i % (kNibbles ? 16 : 32);
    return {block + 2 + code, kNibbles ? i / 16 % 2 * 4 : 0, block, i};
  } else if constexpr (Tag::kFacts.packing == Packing::kPairs) {
    return {int64_t{i / 2}, 4 - i % 2 * 4, 0, i};
  } else if constexpr (Tag::kFacts.packing == Packing::kHalves) {
    const bool is_high = i >= n_elements / 2;
    return {int64_t{is_high ? i - n_elements / 2 : i}, is_high ? 4u : 0u, 0, i};
  } else {
    return {ElementOffset(layout, i), 0, 0, i};
  }
}

// The code of an element, or its bits.
template <class Tag>
KV_DEVICE uint32_t LoadCode(Tag, uint64_t row, const ElementPlace& place) {
  if constexpr (Tag::kBytes == 4) {
    return LoadGlobal<uint32_t>(row + place.offset);
  } else if constexpr (Tag::kBytes == 2) {
    return LoadGlobal<uint16_t>(row + place.offset);
  } else if constexpr (IsNibbles(Tag::kValue)) {
    return LoadGlobal<uint8_t>(row + place.offset) >> place.shift & 15;
  } else {
    return LoadGlobal<uint8_t>(row + place.offset);
  }
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DTYPES_CUH_
