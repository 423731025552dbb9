#include "tests/capi/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/device.h"

test_random test_random_start(const char* test_name) {
  test_random random = {test_seed()};
  fprintf(stderr, "%s: KVEVICT_TEST_SEED=%llu\n", test_name,
          (unsigned long long)random.state);
  return random;
}

/* The state of numbers that are drawn from bytes. */
static const uint64_t kFed = 0xFEDFEDFEDFEDFED1u;
static const uint8_t* fed;
static size_t n_fed;

test_random test_random_feed(const uint8_t* bytes, size_t n_bytes) {
  fed = bytes;
  n_fed = n_bytes;
  return (test_random){kFed};
}

/* Two bytes decide what a bound below 2^16 gives. */
static uint64_t NextFed(void) {
  uint64_t bytes = 0;
  for (int i = 0; i < 2; ++i) {
    bytes <<= 8;
    if (n_fed == 0) continue;
    bytes |= *fed++;
    --n_fed;
  }
  return bytes << 48;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
uint64_t test_random_u64(test_random* random) {
  if (random->state == kFed) return NextFed();
  uint64_t z = random->state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

test_random test_random_apart(test_random* random) {
  return (test_random){test_random_u64(random)};
}

uint32_t test_random_below(test_random* random, uint32_t bound) {
  return (uint32_t)(((test_random_u64(random) >> 32) * bound) >> 32);
}

uint32_t test_random_between(test_random* random, uint32_t low, uint32_t high) {
  return low + test_random_below(random, high - low + 1);
}

bool test_random_coin(test_random* random) {
  return test_random_below(random, 2) != 0;
}

double test_random_unit(test_random* random) {
  return (double)(test_random_u64(random) >> 11) * 0x1p-53;
}

float test_random_normal(test_random* random) {
  /* The sum of six uniform numbers, scaled to a variance of 1. */
  test_random own = *random; /* kept in a register */
  uint64_t sum = 0;
  for (int i = 0; i < 6; ++i) sum += test_random_u64(&own) >> 11;
  *random = own;
  return (float)(((double)sum * 0x1p-53 - 3.0) * 1.4142135623730951);
}

void test_random_bytes(test_random* random, void* memory, uint64_t n_bytes) {
  uint8_t* bytes = memory;
  test_random own = *random;
  for (uint64_t i = 0; i < n_bytes; i += 8) {
    const uint64_t word = test_random_u64(&own);
    memcpy(bytes + i, &word, n_bytes - i < 8 ? (size_t)(n_bytes - i) : 8);
  }
  *random = own;
}

void test_random_permutation(test_random* random, int32_t* out, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t j = test_random_below(random, i + 1);
    out[i] = out[j];
    out[j] = (int32_t)i;
  }
}

void test_random_ascending(test_random* random, int32_t* out, uint32_t n,
                           uint32_t bound) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < bound; ++i) {
    /* This chance of taking i makes every set equally likely. */
    if (test_random_below(random, bound - i) < n - taken)
      out[taken++] = (int32_t)i;
  }
}
