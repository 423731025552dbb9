/* Arrays in NumPy's .npy format, version 1, C order. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_NPY_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_NPY_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

enum { TEST_NPY_MAX_AXES = 4 };

typedef struct test_npy {
  char type[8]; /* "<f2", "<f4", "<i4", "|b1" */
  uint32_t n_axes;
  uint32_t shape[TEST_NPY_MAX_AXES];
  uint8_t* bytes; /* NULL: no such file */
} test_npy;

/* Reads folder/name.npy. Fails the test if the file is damaged or has another
 * type or number of axes. */
test_npy test_npy_read(const char* folder, const char* name, const char* type,
                       uint32_t n_axes);

void test_npy_free(test_npy* array);

typedef struct test_npy_entry {
  test_npy* to;
  const char *name, *type;
  uint32_t n_axes;
} test_npy_entry;

/* Reads arrays of a folder of recorded vectors. Skips the test if the first one is not
 * there, and fails it if another one is missing. */
void test_npy_read_all(const char* folder, const test_npy_entry* entries,
                       size_t n);
void test_npy_free_all(const test_npy_entry* entries, size_t n);

/* The array's f16 numbers in a dtype that holds them exactly: [head, token, dim], of
 * one layer if there is an axis of layers before these. An absent array gives an absent
 * plane. */
kvevict_plane test_npy_plane(const test_npy* array, uint32_t layer,
                             kvevict_dtype dtype);
void test_npy_plane_free(kvevict_plane* plane);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_NPY_H_ */
