#include "tests/capi/support/npy.h"

#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/paths.h"

/* Returns the header, a Python dictionary, after `key`. Fails if it is missing. */
static const char* Field(const char* header, const char* key,
                         const char* name) {
  const char* at = strstr(header, key);
  EXPECT(at != NULL, "%s.npy: no %s", name, key);
  return at + strlen(key);
}

static void ReadHeader(FILE* file, const char* name, test_npy* array) {
  uint8_t magic[10];
  EXPECT(fread(magic, 1, 10, file) == 10 &&
             memcmp(magic, "\x93NUMPY\x01\x00", 8) == 0,
         "%s.npy is no .npy file of version 1", name);
  char header[1024];
  const size_t n = magic[8] + 256u * magic[9];
  EXPECT(n < sizeof header && fread(header, 1, n, file) == n,
         "%s.npy: damaged header", name);
  header[n] = '\0';
  EXPECT(sscanf(Field(header, "'descr': '", name), "%7[^']", array->type) == 1,
         "%s.npy: no type", name);
  const char* order = Field(header, "'fortran_order': ", name);
  EXPECT(strncmp(order, "False", 5) == 0, "%s.npy: Fortran order", name);
  const char* axis = Field(header, "'shape': (", name);
  for (array->n_axes = 0; *axis != ')'; ++array->n_axes) {
    EXPECT(array->n_axes < TEST_NPY_MAX_AXES, "%s.npy: too many axes", name);
    char* end;
    array->shape[array->n_axes] = (uint32_t)strtoul(axis, &end, 10);
    EXPECT(end != axis, "%s.npy: no shape", name);
    axis = end + strspn(end, ", ");
  }
}

test_npy test_npy_read(const char* folder, const char* name, const char* type,
                       uint32_t n_axes) {
  test_npy array;
  memset(&array, 0, sizeof array);
  char path[1024];
  snprintf(path, sizeof path, "%s/%s.npy", folder, name);
  FILE* file = fopen(path, "rb");
  if (file == NULL) return array;
  ReadHeader(file, name, &array);
  EXPECT(strcmp(array.type, type) == 0 && array.n_axes == n_axes,
         "%s.npy is %s with %u axes", name, array.type, array.n_axes);
  size_t n = (size_t)(type[2] - '0');
  for (uint32_t i = 0; i < n_axes; ++i) n *= array.shape[i];
  array.bytes = malloc(n);
  EXPECT(fread(array.bytes, 1, n, file) == n && fgetc(file) == EOF,
         "%s.npy: not %zu bytes of content", name, n);
  fclose(file);
  return array;
}

void test_npy_free(test_npy* array) {
  free(array->bytes);
  array->bytes = NULL;
}

void test_npy_read_all(const char* folder, const test_npy_entry* entries,
                       size_t n) {
  char path[900];
  snprintf(path, sizeof path, "%s/vectors/%s", test_shared_dir, folder);
  for (size_t i = 0; i < n; ++i) {
    const test_npy_entry* e = &entries[i];
    *e->to = test_npy_read(path, e->name, e->type, e->n_axes);
    if (i == 0 && e->to->bytes == NULL) {
      fprintf(stderr, "skipped: no reference vectors in %s\n", path);
      cr_skip_test("no reference vectors in %s", path);
    }
    EXPECT(e->to->bytes != NULL, "%s: no %s", path, e->name);
  }
}

void test_npy_free_all(const test_npy_entry* entries, size_t n) {
  for (size_t i = 0; i < n; ++i) test_npy_free(entries[i].to);
}

kvevict_plane test_npy_plane(const test_npy* array, uint32_t layer,
                             kvevict_dtype dtype) {
  kvevict_plane plane;
  memset(&plane, 0, sizeof plane);
  if (array->bytes == NULL) return plane;
  const uint32_t size = oracle_element_bytes(dtype);
  const uint32_t* const shape = array->shape + array->n_axes - 3;
  const size_t n = (size_t)shape[0] * shape[1] * shape[2];
  const uint8_t* const from = array->bytes + 2 * n * layer;
  uint8_t* bytes = malloc(n * size);
  for (size_t i = 0; i < n; ++i) {
    const float value = test_load(KVEVICT_DTYPE_F16, from + 2 * i);
    test_store(dtype, value, bytes + i * size);
    EXPECT(test_load(dtype, bytes + i * size) == value, "%g is not exact",
           (double)value);
  }
  plane.data = (uint64_t)(uintptr_t)bytes;
  plane.dtype = dtype;
  plane.head_dim = shape[2];
  plane.token_stride_bytes = (int64_t)shape[2] * size;
  plane.head_stride_bytes = plane.token_stride_bytes * shape[1];
  return plane;
}

void test_npy_plane_free(kvevict_plane* plane) {
  free((void*)(uintptr_t)plane->data);
  plane->data = 0;
}
