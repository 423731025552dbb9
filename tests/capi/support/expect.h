/* Assertions about statuses, messages and untouched memory. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_EXPECT_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_EXPECT_H_

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/device.h"

/* cr_assert() reports to another process even when it holds, which in loops
 * takes longer than the test. This reports only failures. */
#define EXPECT(condition, ...)                     \
  do {                                             \
    if (!(condition)) cr_assert_fail(__VA_ARGS__); \
  } while (0)

#define EXPECT_OK(call)                                                       \
  do {                                                                        \
    const kvevict_status expect_status = (call);                              \
    test_wait();                                                              \
    EXPECT(expect_status == KVEVICT_OK, "%s: %s: %s", #call,                  \
           kvevict_status_name(expect_status), kvevict_last_error_message()); \
  } while (0)

/* The call fails with `code`, and every text after it stands in the message. */
#define EXPECT_FAILS(call, code, ...)                                        \
  do {                                                                       \
    const kvevict_status expect_status = (call);                             \
    const char* const expect_texts[] = {__VA_ARGS__, NULL};                  \
    EXPECT(expect_status == (code), "%s: got %s (%s), want %s", #call,       \
           kvevict_status_name(expect_status),                               \
           expect_status == KVEVICT_OK ? "" : kvevict_last_error_message(),  \
           #code);                                                           \
    for (int expect_i = 0; expect_texts[expect_i] != NULL; ++expect_i) {     \
      EXPECT(strstr(kvevict_last_error_message(), expect_texts[expect_i]) != \
                 NULL,                                                       \
             "%s: message \"%s\" lacks \"%s\"", #call,                       \
             kvevict_last_error_message(), expect_texts[expect_i]);          \
    }                                                                        \
  } while (0)

#define EXPECT_INVALID(call, ...) \
  EXPECT_FAILS(call, KVEVICT_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

enum { TEST_GUARD = 0xA5 };

static inline int test_is_filled(const void* memory, size_t n_bytes) {
  const uint8_t* bytes = memory;
  for (size_t i = 0; i < n_bytes; ++i) {
    if (bytes[i] != TEST_GUARD) return 0;
  }
  return 1;
}

/* Fills an object with guard bytes; checks that they are all there still. */
#define GUARD(object) memset(&(object), TEST_GUARD, sizeof(object))
#define EXPECT_UNTOUCHED(object) \
  EXPECT(test_is_filled(&(object), sizeof(object)), "%s was written", #object)

/* The sizes of structs in the release that first had them: kvevict_view_first_size. */
enum {
#define KVEVICT_STRUCT(name, first_size) name##_first_size = first_size,
#include "capi/structs.inc"
#undef KVEVICT_STRUCT
};

/* An in-struct of type T and 16 bytes of a later release behind it. */
#define GROWN(T)                                                     \
  union {                                                            \
    T value;                                                         \
    uint8_t bytes[sizeof(T) + 16];                                   \
    /* Callers with 32 bits are of this release. */                  \
    char (*oldest)[sizeof(void*) == 8 ? T##_first_size : sizeof(T)]; \
  }

/* `call` uses `grown.value`, a valid input struct. It must fail for a struct_size below
 * the first release's, and for a larger one if a byte of the tail is not 0. */
#define EXPECT_CHECKS_STRUCT_SIZE(grown, call)                                 \
  do {                                                                         \
    const uint32_t expect_size = (uint32_t)sizeof((grown).value);              \
    const uint32_t expect_small[] = {0, 4, sizeof *(grown).oldest - 1};        \
    memset((grown).bytes + expect_size, 0, 16);                                \
    for (int expect_k = 0; expect_k < 3; ++expect_k) {                         \
      char expect_text[16];                                                    \
      snprintf(expect_text, sizeof expect_text, "%u", expect_small[expect_k]); \
      (grown).value.struct_size = expect_small[expect_k];                      \
      EXPECT_INVALID(call, "struct_size", expect_text);                        \
    }                                                                          \
    (grown).value.struct_size = expect_size + 16;                              \
    EXPECT_OK(call);                                                           \
    (grown).value.struct_size = expect_size + 16;                              \
    (grown).bytes[expect_size + 15] = 1;                                       \
    EXPECT_INVALID(call, "struct_size");                                       \
    memset((grown).bytes + expect_size, 0, 16);                                \
    (grown).value.struct_size = expect_size;                                   \
    EXPECT_OK(call);                                                           \
  } while (0)

/* The same for a struct that the call writes: it fills the part of a larger one
 * that this library knows. */
#define EXPECT_CHECKS_OUT_STRUCT_SIZE(grown, call)                       \
  do {                                                                   \
    const uint32_t expect_size = (uint32_t)sizeof((grown).value);        \
    const uint32_t expect_small[] = {0, 4, sizeof *(grown).oldest - 1};  \
    for (int expect_k = 0; expect_k < 3; ++expect_k) {                   \
      GUARD(grown);                                                      \
      (grown).value.struct_size = expect_small[expect_k];                \
      EXPECT_INVALID(call, "struct_size");                               \
      EXPECT(test_is_filled((grown).bytes + 4, sizeof(grown).bytes - 4), \
             "%s was written", #grown);                                  \
    }                                                                    \
    memset(&(grown), 0, sizeof(grown));                                  \
    (grown).value.struct_size = expect_size + 16;                        \
    EXPECT_OK(call);                                                     \
    EXPECT((grown).value.struct_size == expect_size + 16,                \
           "struct_size was written");                                   \
    for (int expect_k = 0; expect_k < 16; ++expect_k) {                  \
      EXPECT((grown).bytes[expect_size + expect_k] == 0,                 \
             "%s was written beyond what is known", #grown);             \
    }                                                                    \
  } while (0)

/* at(index, T* out) lists n rows. Beyond them it fails and writes nothing; T's
 * struct_size is checked. */
#define EXPECT_ENDS_AT(n, T, at)                                             \
  do {                                                                       \
    T expect_row;                                                            \
    GUARD(expect_row);                                                       \
    expect_row.struct_size = sizeof expect_row;                              \
    const T expect_before = expect_row;                                      \
    EXPECT_INVALID(at(n, &expect_row), "index");                             \
    EXPECT_INVALID(at(UINT32_MAX, &expect_row), "index");                    \
    EXPECT(memcmp(&expect_row, &expect_before, sizeof expect_row) == 0,      \
           "%s wrote", #at);                                                 \
    EXPECT_INVALID(at(0, NULL), "out", "NULL");                              \
    GROWN(T) expect_grown = {{.struct_size = 0}};                            \
    EXPECT_CHECKS_OUT_STRUCT_SIZE(expect_grown, at(1, &expect_grown.value)); \
  } while (0)

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_EXPECT_H_ */
