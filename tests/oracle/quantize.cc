#include "tests/oracle/quantize.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/oracle/compact.h"
#include "tests/oracle/quantized.h"

namespace {

// The multiples of a power of two that a dtype has around v.
struct Format {
  int fraction_bits, least_exponent;
  double largest;
};

Format FormatOf(kvevict_dtype dtype) {
  if (dtype == KVEVICT_DTYPE_F16) return {10, -14, 65504.0};
  if (dtype == KVEVICT_DTYPE_BF16) return {7, -126, std::ldexp(255.0, 120)};
  return {23, -126, FLT_MAX};
}

double Quantum(const Format& f, double v) {
  int exponent = 0;
  std::frexp(v, &exponent);
  return std::ldexp(1.0,
                    std::max(exponent - 1, f.least_exponent) - f.fraction_bits);
}

double Up(kvevict_dtype dtype, double v) {
  if (std::isnan(v) || std::isinf(v)) return v;
  const Format f = FormatOf(dtype);
  const double quantum = Quantum(f, v);
  const double up = std::ceil(v / quantum) * quantum;
  return up > f.largest ? HUGE_VAL : up < -f.largest ? -f.largest : up;
}

double Nearest(kvevict_dtype dtype, double v) {
  if (std::isnan(v) || std::isinf(v)) return v;
  const Format f = FormatOf(dtype);
  const double quantum = Quantum(f, v);
  const double nearest = std::nearbyint(v / quantum) * quantum;
  return std::abs(nearest) > f.largest ? std::copysign(HUGE_VAL, v) : nearest;
}

// Writes the bits of a number that the dtype has.
void Put(kvevict_dtype dtype, double v, uint8_t* out) {
  const auto single = static_cast<float>(v);
  if (dtype == KVEVICT_DTYPE_F32) {
    std::memcpy(out, &single, sizeof(single));
    return;
  }
  const Format f = FormatOf(dtype);
  const int n_exponents = f.fraction_bits == 10 ? 31 : 255;
  const uint32_t one = 1u << f.fraction_bits;
  uint32_t bits = static_cast<uint32_t>(n_exponents) << f.fraction_bits;
  if (std::isnan(v)) {
    bits |= one / 2;
  } else if (!std::isinf(v)) {
    const double quantum = Quantum(f, v);
    bits = static_cast<uint32_t>(std::abs(v) / quantum);
    const int exponent = std::ilogb(quantum) + f.fraction_bits;
    if (bits >= one) {
      bits += static_cast<uint32_t>(exponent - f.least_exponent) * one;
    }
  }
  if (!std::isnan(v) && std::signbit(v)) bits |= 0x8000;
  out[0] = static_cast<uint8_t>(bits);
  out[1] = static_cast<uint8_t>(bits >> 8);
}

struct Range {
  float min = HUGE_VALF, max = -HUGE_VALF;
  bool is_finite = true;
  float size() const { return std::max(-min, max); }
};

Range RangeOf(const float* row, uint32_t n) {
  Range range;
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isfinite(row[i])) range.is_finite = false;
    range.min = std::min(range.min, row[i]);
    range.max = std::max(range.max, row[i]);
  }
  return range;
}

float Step(float range, float n_steps) {
  return range > 0 ? std::max(range / n_steps, FLT_MIN) : 0.0f;
}

void FindNumbers(float lowest, float highest, const float* row, uint32_t n,
                 oracle_numbers* x) {
  const Range range = RangeOf(row, n);
  float minimum = 0.0f, scale = 0.0f;
  if (!x->has_minimum) {
    scale = Step(range.size(), highest);
  } else if (lowest == 0.0f) {
    minimum = static_cast<float>(-Up(x->minimum_dtype, -range.min));
    scale = Step(range.max - minimum, highest);
  } else {
    const float step = Step(range.max - range.min, highest - lowest);
    const auto up = static_cast<float>(Up(x->scale_dtype, step));
    minimum = static_cast<float>(Up(x->minimum_dtype, range.min - lowest * up));
    scale = std::max(Step(minimum - range.min, -lowest),
                     Step(range.max - minimum, highest));
  }
  scale = static_cast<float>(Up(x->scale_dtype, scale));
  const bool ok =
      range.is_finite && std::isfinite(scale) && std::isfinite(minimum);
  x->scale = ok ? scale : NAN;
  x->minimum = ok ? minimum + 0.0f : 0.0f;
}

int Integer(const oracle_numbers& x, float v, float lowest, float highest) {
  if (!x.stays && !(x.scale > 0)) return 0;
  const float q = (v - x.minimum) / x.scale;
  if (std::isnan(q)) return 0;
  return static_cast<int>(
      std::nearbyintf(std::min(std::max(q, lowest), highest)));
}

// Codes of fp8 without sign.
struct Codes {
  explicit Codes(kvevict_dtype dtype) {
    const oracle_small_float f = oracle_small_float_of(dtype);
    if (f.finite) return;
    const int one = 1 << f.n_fraction;
    infinity = static_cast<uint8_t>(0x80 - one);
    nan = static_cast<uint8_t>(infinity + one / 2);
    largest = static_cast<uint8_t>(infinity - 1);
  }
  uint8_t largest = 0x7E, infinity = 0x7F, nan = 0x7F;
};

double LargestOf(kvevict_dtype dtype) {
  const uint8_t largest = Codes(dtype).largest;
  return oracle_code(dtype, &largest, 1, 0);
}

// The fp8 number next to q, the even one of two equally near ones.
uint8_t SmallFloat(kvevict_dtype dtype, float q) {
  const Codes codes(dtype);
  const uint8_t sign = std::signbit(q) ? 0x80 : 0;
  if (std::isnan(q)) return codes.nan;
  if (std::isinf(q)) return sign | codes.infinity;
  const double size = std::min(std::abs(double{q}), LargestOf(dtype));
  uint8_t best = 0;
  double least = HUGE_VAL;
  for (uint8_t code = 0; code <= codes.largest; ++code) {
    const double error = std::abs(oracle_code(dtype, &code, 1, 0) - size);
    if (error > least || (error == least && code % 2 != 0)) continue;
    least = error;
    best = code;
  }
  return sign | best;
}

void StoreSmallFloats(kvevict_dtype dtype, const float* row, uint32_t n,
                      oracle_numbers* x, uint8_t* out) {
  if (!x->has_scale) x->scale = 1.0f;
  if (x->has_scale && !x->stays) {
    float size = 0.0f;
    for (uint32_t i = 0; i < n; ++i) {
      if (std::isfinite(row[i])) size = std::max(size, std::abs(row[i]));
    }
    const auto largest = static_cast<float>(LargestOf(dtype));
    x->scale = size > 0
                   ? static_cast<float>(Up(x->scale_dtype, Step(size, largest)))
                   : 1.0f;
    if (!std::isfinite(x->scale)) x->scale = NAN;
  }
  for (uint32_t i = 0; i < n; ++i)
    out[i] = SmallFloat(dtype, row[i] / x->scale);
}

// Writes d as an f16 and returns 1 / d; 0 if all codes stand for 0.
float BlockScale(float d, bool is_finite, uint8_t* out) {
  double stored = Nearest(KVEVICT_DTYPE_F16, d);
  if (!is_finite || !std::isfinite(stored)) stored = NAN;
  Put(KVEVICT_DTYPE_F16, stored, out);
  if (std::isnan(stored) || d == 0.0f || std::isinf(1.0f / d)) return 0.0f;
  return 1.0f / d;
}

// ggml's quantize_row_q8_0_ref().
void StoreQ8(const float* x, uint8_t* out) {
  float amax = 0.0f;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::abs(x[i]));
  const float id = BlockScale(amax / 127.0f, RangeOf(x, 32).is_finite, out);
  for (int i = 0; i < 32; ++i) {
    const float q = id == 0.0f ? 0.0f : std::roundf(x[i] * id);
    out[2 + i] = static_cast<uint8_t>(static_cast<int>(q));
  }
}

// ggml's quantize_row_q4_0_ref().
void StoreQ4(const float* x, bool fused, uint8_t* out) {
  float amax = 0.0f, max = 0.0f;
  for (int i = 0; i < 32; ++i) {
    if (amax < std::abs(x[i])) {
      amax = std::abs(x[i]);
      max = x[i];
    }
  }
  const float id = BlockScale(max / -8.0f, RangeOf(x, 32).is_finite, out);
  const auto code = [&](float v) {
    if (id == 0.0f) return 8;
    volatile const float product = v * id;
    const float q = fused ? std::fmaf(v, id, 8.5f) : product + 8.5f;
    return std::min(15, static_cast<int>(q));
  };
  for (int j = 0; j < 16; ++j) {
    out[2 + j] = static_cast<uint8_t>(code(x[j]) | code(x[j + 16]) << 4);
  }
}

void PackNibbles(kvevict_dtype dtype, const std::vector<int>& codes,
                 uint8_t* out) {
  const size_t half = codes.size() / 2;
  for (size_t j = 0; j < half; ++j) {
    const bool pairs = dtype == KVEVICT_DTYPE_U4;
    const int low = pairs ? codes[2 * j + 1] : codes[j];
    const int high = pairs ? codes[2 * j] : codes[half + j];
    out[j] = static_cast<uint8_t>(low | high << 4);
  }
}

const kvevict_plane* FindRole(const kvevict_view& view, int role) {
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (view.companions[i].role == role) return &view.companions[i];
  }
  return nullptr;
}

}  // namespace

void oracle_quantize(kvevict_dtype dtype, const float* row, uint32_t n,
                     bool fused, oracle_numbers* x, uint8_t* out) {
  float lowest = 0.0f, highest = 255.0f;
  switch (dtype) {
    case KVEVICT_DTYPE_OPAQUE:
      return;
    case KVEVICT_DTYPE_F32:
      std::memcpy(out, row, n * sizeof(float));
      return;
    case KVEVICT_DTYPE_F16:
    case KVEVICT_DTYPE_BF16:
      for (uint32_t i = 0; i < n; ++i) {
        Put(dtype, Nearest(dtype, row[i]), out + 2 * i);
      }
      return;
    case KVEVICT_DTYPE_Q8_0:
      for (uint32_t b = 0; b < n / 32; ++b) StoreQ8(row + 32 * b, out + 34 * b);
      return;
    case KVEVICT_DTYPE_Q4_0:
      for (uint32_t b = 0; b < n / 32; ++b) {
        StoreQ4(row + 32 * b, fused, out + 18 * b);
      }
      return;
    case KVEVICT_DTYPE_I8:
      lowest = -128.0f;
      highest = 127.0f;
      break;
    case KVEVICT_DTYPE_U4:
    case KVEVICT_DTYPE_U4_HALVES:
      highest = 15.0f;
      break;
    case KVEVICT_DTYPE_U8:
      break;
    default:
      return StoreSmallFloats(dtype, row, n, x, out);
  }
  if (!x->stays) FindNumbers(lowest, highest, row, n, x);
  if (!x->has_minimum) {
    x->minimum = 0.0f;
    if (!x->stays && lowest < 0) lowest = -highest;
  }
  std::vector<int> codes(n);
  for (uint32_t i = 0; i < n; ++i) {
    codes[i] = Integer(*x, row[i], lowest, highest);
  }
  if (highest == 15.0f) {
    PackNibbles(dtype, codes, out);
  } else {
    for (uint32_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(codes[i]);
  }
}

void oracle_store_row(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t token, uint32_t head, bool fused,
                      const float* row) {
  const bool is_value = plane == &view->v;
  const kvevict_plane* const of[2] = {
      FindRole(*view,
               is_value ? KVEVICT_ROLE_VALUE_SCALE : KVEVICT_ROLE_KEY_SCALE),
      FindRole(*view, is_value ? KVEVICT_ROLE_VALUE_MINIMUM
                               : KVEVICT_ROLE_KEY_MINIMUM)};
  oracle_numbers x{};
  x.has_scale = of[0] != nullptr;
  x.has_minimum = of[1] != nullptr;
  float* const numbers[2] = {&x.scale, &x.minimum};
  for (int i = 0; i < 2; ++i) {
    if (of[i] == nullptr) continue;
    (i == 0 ? x.scale_dtype : x.minimum_dtype) = of[i]->dtype;
    if (oracle_has_rows(of[i])) continue;
    x.stays = true;
    *numbers[i] = static_cast<float>(oracle_code(
        of[i]->dtype,
        reinterpret_cast<const uint8_t*>(
            of[i]->data +
            static_cast<uint64_t>(int64_t{head} * of[i]->head_stride_bytes)),
        1, 0));
  }
  std::vector<uint8_t> bytes(oracle_row_bytes(plane));
  oracle_quantize(plane->dtype, row, plane->head_dim, fused, &x, bytes.data());
  oracle_set_row(view, plane, token, head, bytes.data());
  for (int i = 0; i < 2 && !x.stays; ++i) {
    if (of[i] == nullptr) continue;
    uint8_t number[4];
    Put(of[i]->dtype, *numbers[i], number);
    oracle_set_row(view, of[i], token, head, number);
  }
}

double oracle_most_error(kvevict_dtype dtype, const oracle_numbers* numbers,
                         const float* row, uint32_t n, uint32_t e) {
  const double size = std::abs(double{row[e]});
  const double rounding = size * FLT_EPSILON;  // the element is read again
  switch (dtype) {
    case KVEVICT_DTYPE_F32:
    case KVEVICT_DTYPE_OPAQUE:
      return 0.0;
    case KVEVICT_DTYPE_F16:
    case KVEVICT_DTYPE_BF16:
      return Quantum(FormatOf(dtype), size) / 2;
    case KVEVICT_DTYPE_U8:
    case KVEVICT_DTYPE_I8:
    case KVEVICT_DTYPE_U4:
    case KVEVICT_DTYPE_U4_HALVES:
      return rounding + numbers->scale * 0.5 * (1 + 0x1p-20);
    case KVEVICT_DTYPE_Q8_0:
    case KVEVICT_DTYPE_Q4_0:
      break;
    default: {
      const oracle_small_float f = oracle_small_float_of(dtype);
      const int least = 2 - (1 << (f.n_exponent - 1));
      const double largest = LargestOf(dtype);
      const double scale = numbers->has_scale ? double{numbers->scale} : 1.0;
      const double beyond =
          numbers->has_scale ? 0.0 : std::max(size - largest, 0.0);
      return rounding + beyond +
             scale * Quantum({f.n_fraction, least, largest}, size / scale) / 2 *
                 (1 + 0x1p-20);
    }
  }
  // ggml rounds d to f16 after finding the codes, by up to 2^-11 of it.
  const float* const block = row + e / 32 * 32;
  const float most = RangeOf(block, std::min(32u, n)).size();
  if (dtype == KVEVICT_DTYPE_Q8_0) {
    return most / 127 * (0.5 + 127 * 0x1p-11) * (1 + 0x1p-20) + 127 * 0x1p-25;
  }
  // Codes reach from -8 to 7: numbers opposite to the largest one may lose a whole step.
  const double step = most / 8;
  const bool at_end = size > 7.5 * step;
  return step * ((at_end ? 1.0 : 0.5) + 8 * 0x1p-11) * (1 + 0x1p-20) +
         8 * 0x1p-25;
}
