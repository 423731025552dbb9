#include "tests/oracle/quantized.h"

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/oracle/compact.h"

namespace {

double PowerOf2(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

// A number with so many bits of exponent and fraction; see oracle_small_float.
double Number(uint32_t bits, int n_exponent, int n_fraction, bool finite) {
  const int highest = (1 << n_exponent) - 1;
  const int exponent = static_cast<int>(bits >> n_fraction) & highest;
  const int fraction = static_cast<int>(bits) & ((1 << n_fraction) - 1);
  const int bias = highest / 2;
  const bool is_negative = (bits >> (n_exponent + n_fraction) & 1) != 0;
  double size = 0.0;
  if (exponent == highest && (!finite || fraction == (1 << n_fraction) - 1)) {
    size = !finite && fraction == 0 ? std::numeric_limits<double>::infinity()
                                    : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    size = fraction * PowerOf2(1 - bias - n_fraction);
  } else {
    size =
        ((1 << n_fraction) + fraction) * PowerOf2(exponent - bias - n_fraction);
  }
  return is_negative ? -size : size;
}

double F16At(const uint8_t* at) {
  return Number(at[0] | uint32_t{at[1]} << 8, 5, 10, false);
}

int Signed(uint8_t byte) { return byte < 128 ? byte : int{byte} - 256; }

double PlainAt(kvevict_dtype dtype, const uint8_t* at) {
  if (dtype == KVEVICT_DTYPE_F16) return F16At(at);
  if (dtype == KVEVICT_DTYPE_BF16) {
    return Number(at[0] | uint32_t{at[1]} << 8, 8, 7, false);
  }
  float value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// The number that a companion has for a row; `otherwise` if there is none.
double NumberOf(const kvevict_view& view, kvevict_role role, uint32_t token,
                uint32_t head, double otherwise) {
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const kvevict_plane& plane = view.companions[i];
    if (plane.role != role) continue;
    if (!oracle_has_rows(&plane)) {
      return PlainAt(
          plane.dtype,
          reinterpret_cast<const uint8_t*>(
              plane.data +
              static_cast<uint64_t>(int64_t{head} * plane.head_stride_bytes)));
    }
    return PlainAt(plane.dtype, oracle_row_byte(&view, &plane, token, head, 0));
  }
  return otherwise;
}

// A row's element without its scale and minimum.
double CodeOf(const kvevict_view* view, const kvevict_plane* plane,
              uint32_t token, uint32_t head, uint32_t e) {
  const uint32_t size = oracle_packed_bytes(plane->dtype, 1);
  if (size > 1) {
    return PlainAt(plane->dtype,
                   oracle_row_byte(view, plane, token, head, size * e));
  }
  std::vector<uint8_t> row(oracle_row_bytes(plane));
  oracle_get_row(view, plane, token, head, row.data());
  return oracle_code(plane->dtype, row.data(), plane->head_dim, e);
}

}  // namespace

oracle_small_float oracle_small_float_of(kvevict_dtype dtype) {
  if (dtype == KVEVICT_DTYPE_FP8_E4M3) return {4, 3, true};
  if (dtype == KVEVICT_DTYPE_FP8_E5M2) return {5, 2, false};
  return {};
}

uint32_t oracle_packed_bytes(kvevict_dtype dtype, uint32_t n) {
  switch (dtype) {
    case KVEVICT_DTYPE_OPAQUE:
      return 0;
    case KVEVICT_DTYPE_F32:
      return 4 * n;
    case KVEVICT_DTYPE_F16:
    case KVEVICT_DTYPE_BF16:
      return 2 * n;
    case KVEVICT_DTYPE_U4:
    case KVEVICT_DTYPE_U4_HALVES:
      return n / 2;
    case KVEVICT_DTYPE_Q8_0:
      return n / 32 * 34;
    case KVEVICT_DTYPE_Q4_0:
      return n / 32 * 18;
    default:
      return n;
  }
}

double oracle_code(kvevict_dtype dtype, const uint8_t* row, uint32_t n,
                   uint32_t e) {
  switch (dtype) {
    case KVEVICT_DTYPE_OPAQUE:
      return 0.0;
    case KVEVICT_DTYPE_F32:
      return PlainAt(dtype, row + 4 * e);
    case KVEVICT_DTYPE_F16:
    case KVEVICT_DTYPE_BF16:
      return PlainAt(dtype, row + 2 * e);
    case KVEVICT_DTYPE_U8:
      return row[e];
    case KVEVICT_DTYPE_I8:
      return Signed(row[e]);
    case KVEVICT_DTYPE_U4:
      return e % 2 == 0 ? row[e / 2] / 16 : row[e / 2] % 16;
    case KVEVICT_DTYPE_U4_HALVES:
      return e < n / 2 ? row[e] % 16 : row[e - n / 2] / 16;
    case KVEVICT_DTYPE_Q8_0: {
      const uint8_t* block = row + e / 32 * 34;
      return Signed(block[2 + e % 32]) * F16At(block);
    }
    case KVEVICT_DTYPE_Q4_0: {
      const uint8_t* block = row + e / 32 * 18;
      const uint8_t byte = block[2 + e % 16];
      return ((e % 32 < 16 ? byte % 16 : byte / 16) - 8) * F16At(block);
    }
    default: {
      const oracle_small_float f = oracle_small_float_of(dtype);
      return Number(row[e], f.n_exponent, f.n_fraction, f.finite);
    }
  }
}

double oracle_element(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t token, uint32_t head, uint32_t e) {
  const double code = CodeOf(view, plane, token, head, e);
  const bool is_value = plane == &view->v;
  if (!is_value && plane != &view->k) return code;  // a companion's number
  const double scale = NumberOf(
      *view, is_value ? KVEVICT_ROLE_VALUE_SCALE : KVEVICT_ROLE_KEY_SCALE,
      token, head, 1.0);
  const double minimum = NumberOf(
      *view, is_value ? KVEVICT_ROLE_VALUE_MINIMUM : KVEVICT_ROLE_KEY_MINIMUM,
      token, head, -0.0);  // adds nothing, not even to -0
  return code * scale + minimum;
}
