// How codes of dtypes lie in a row and which numbers they are: the last columns
// of core/dtypes.inc. CUDA's kernels read this file, too.
#ifndef KVEVICT_CORE_CODES_H_
#define KVEVICT_CORE_CODES_H_

namespace kvevict {

enum class Packing : unsigned { kNumbers, kBytes, kPairs, kHalves, kBlocks };

// The numbers of codes, before scale and minimum: all 0 if there are none.
struct CodeNumbers {
  int lowest = 0, highest = 0;  // of integers

  // Floats have a sign bit, an exponent and `fraction` bits. These are codes
  // without a sign: the largest number, infinity and the NaN that is written.
  // Codes above `largest` are NaN if they are not infinity. Infinity equals
  // `nan` where there is none.
  unsigned fraction = 0, bias = 0;
  unsigned largest = 0, infinity = 0, nan = 0;

  constexpr bool is_float() const { return fraction != 0; }
  // Bits of f32.
  constexpr unsigned bias_bits() const { return (127 - bias) << 23; }
  constexpr unsigned largest_bits() const {
    return (largest << (23 - fraction)) + bias_bits();
  }
  // Codes are the upper halves of f16.
  constexpr bool is_half_of_f16() const {
    return fraction == 2 && bias == 15 && infinity == 0x7C;
  }
  // Decoders take bits for those of f16. Only its upper halves have infinities;
  // of other floats all ones alone are NaN.
  constexpr bool can_be_decoded() const {
    return is_half_of_f16() ||
           (fraction > 2 && fraction < 7 && bias <= 15 && largest == 0x7E);
  }
};

constexpr CodeNumbers NoCodes() { return {}; }
constexpr CodeNumbers Integers(int lowest, int highest) {
  return {lowest, highest};
}
constexpr CodeNumbers Floats(unsigned fraction, unsigned bias, unsigned largest,
                             unsigned infinity, unsigned nan) {
  return {0, 0, fraction, bias, largest, infinity, nan};
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_CODES_H_
