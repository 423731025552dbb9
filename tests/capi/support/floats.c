#include "tests/capi/support/floats.h"

#include <math.h>
#include <string.h>

static float LoadF16(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t fraction = bits & 1023;
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  const uint32_t normal = wide << 23 | fraction << 13;
  float value = (float)fraction * 0x1p-24f; /* if it is subnormal */
  if (exponent != 0) memcpy(&value, &normal, sizeof value);
  return (bits & 0x8000) != 0 ? -value : value;
}

/* Cuts off what F16 does not have. */
static uint16_t StoreF16(float value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const float size = fabsf(value);
  if (isnan(value)) return 0x7E00;
  if (isinf(value)) return sign | 0x7C00;
  if (size >= 0x1p16f) return sign | 0x7BFF;
  if (size < 0x1p-14f) return sign | (uint16_t)(size * 0x1p24f);
  uint32_t bits;
  memcpy(&bits, &size, sizeof bits);
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

void test_store(kvevict_dtype dtype, float value, void* element) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t half = (uint16_t)(bits >> 16);
  if (dtype == KVEVICT_DTYPE_F16) half = StoreF16(value);
  if (dtype == KVEVICT_DTYPE_F32) {
    memcpy(element, &value, sizeof value);
  } else if (dtype == KVEVICT_DTYPE_OPAQUE) {
    memcpy(element, &bits, 1); /* any byte will do */
  } else {
    memcpy(element, &half, sizeof half);
  }
}

float test_load(kvevict_dtype dtype, const void* element) {
  uint16_t half;
  uint32_t bits;
  float value;
  if (dtype == KVEVICT_DTYPE_F32) {
    memcpy(&value, element, sizeof value);
    return value;
  }
  memcpy(&half, element, sizeof half);
  if (dtype == KVEVICT_DTYPE_F16) return LoadF16(half);
  bits = (uint32_t)half << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

kvevict_dtype_info test_dtype_info(kvevict_dtype dtype) {
  kvevict_dtype_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; kvevict_dtype_at(i, &info) == KVEVICT_OK; ++i) {
    if (info.dtype == dtype) break;
  }
  return info;
}

kvevict_dtype test_last_dtype(void) {
  kvevict_dtype_info info = {.struct_size = sizeof info};
  kvevict_dtype last = KVEVICT_DTYPE_OPAQUE;
  for (uint32_t i = 0; kvevict_dtype_at(i, &info) == KVEVICT_OK; ++i) {
    if (info.dtype > last) last = info.dtype;
  }
  return last;
}

double test_stored_bound(kvevict_dtype dtype, double v) {
  if (dtype == KVEVICT_DTYPE_F16) return fmax(fabs(v) * 0x1p-11, 0x1p-25);
  return dtype == KVEVICT_DTYPE_BF16 ? fabs(v) * 0x1p-8 : 0.0;
}
