/* Reproducible random numbers; the seed is printed and can be set from outside.
 */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_RANDOM_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_RANDOM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct test_random {
  uint64_t state;
} test_random;

/* KVEVICT_TEST_SEED, or 1; printed to stderr with the name of the test. */
test_random test_random_start(const char* test_name);

/* Draws the numbers from bytes, and zeros once they are used up. The bytes must stay, and
 * only the last ones that were given are read. */
test_random test_random_feed(const uint8_t* bytes, size_t n_bytes);

uint64_t test_random_u64(test_random* random);

/* Numbers of their own. One draw decides all of them. */
test_random test_random_apart(test_random* random);

/* The number is in [0, bound); bound > 0. */
uint32_t test_random_below(test_random* random, uint32_t bound);

/* The number is in [low, high]. */
uint32_t test_random_between(test_random* random, uint32_t low, uint32_t high);

bool test_random_coin(test_random* random);

/* The number is in [0, 1). */
double test_random_unit(test_random* random);

/* Roughly normal, mean 0, deviation 1. */
float test_random_normal(test_random* random);

void test_random_bytes(test_random* random, void* memory, uint64_t n_bytes);

/* A permutation of 0 .. n-1. */
void test_random_permutation(test_random* random, int32_t* out, uint32_t n);

/* n different numbers below `bound`, ascending. */
void test_random_ascending(test_random* random, int32_t* out, uint32_t n,
                           uint32_t bound);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_RANDOM_H_ */
