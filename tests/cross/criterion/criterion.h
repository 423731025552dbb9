/* The part of Criterion that the tests use, for machines that have none: all
 * cases in one process, one after the other. See cases.c. */
#ifndef KVEVICT_TESTS_CROSS_CRITERION_H_
#define KVEVICT_TESTS_CROSS_CRITERION_H_

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct criterion_options {
  void (*init)(void);
  void (*fini)(void);
};

struct criterion_test_params {
  size_t size;
  void* params;
  size_t length;
};

struct criterion_case {
  const char* suite;
  const char* name; /* NULL: applies to all cases of the suite */
  void (*run)(void);
  void (*run_with)(void* parameter);
  struct criterion_test_params (*parameters)(void);
  struct criterion_options options;
  struct criterion_case* next;
};

void criterion_add(struct criterion_case* one);
/* A fatal failure does not return. */
void criterion_fail(int is_fatal, const char* file, int line, const char* what,
                    const char* format, ...)
#ifndef __MINGW32__ /* its compiler means msvcrt's formats */
    __attribute__((format(printf, 5, 6)))
#endif
    ;
void criterion_skip(const char* format, ...);

#ifdef __cplusplus
}
#endif

#define CR_ADD_(id, ...)                                    \
  static struct criterion_case id##_case = {__VA_ARGS__};   \
  __attribute__((constructor)) static void id##_add(void) { \
    criterion_add(&id##_case);                              \
  }

#define TestSuite(suite_, ...)                                            \
  CR_ADD_(suite_##_suite, #suite_, NULL, NULL, NULL, NULL, {__VA_ARGS__}, \
          NULL)                                                           \
  struct suite_##_suite /* for the semicolon */

#define Test(suite_, name_, ...)                                           \
  static void suite_##_##name_##_run(void);                                \
  CR_ADD_(suite_##_##name_, #suite_, #name_, suite_##_##name_##_run, NULL, \
          NULL, {__VA_ARGS__}, NULL)                                       \
  static void suite_##_##name_##_run(void)

#define CR_FAIL_(fatal, what, ...) \
  criterion_fail(fatal, __FILE__, __LINE__, what, " " __VA_ARGS__)
#define CR_CHECK_(fatal, condition, what, ...)            \
  do {                                                    \
    if (!(condition)) CR_FAIL_(fatal, what, __VA_ARGS__); \
  } while (0)

#define cr_assert(c, ...) CR_CHECK_(1, c, #c, __VA_ARGS__)
#define cr_expect(c, ...) CR_CHECK_(0, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) CR_CHECK_(1, !(c), "!(" #c ")", __VA_ARGS__)
#define cr_expect_not(c, ...) CR_CHECK_(0, !(c), "!(" #c ")", __VA_ARGS__)
#define cr_assert_fail(...) CR_FAIL_(1, "failure", __VA_ARGS__)
#define cr_expect_fail(...) CR_FAIL_(0, "failure", __VA_ARGS__)

#define CR_COMPARE_(fatal, a, op, b, ...) \
  CR_CHECK_(fatal, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) CR_COMPARE_(1, a, ==, b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) CR_COMPARE_(0, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) CR_COMPARE_(1, a, !=, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) CR_COMPARE_(0, a, !=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) CR_COMPARE_(1, a, >, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) CR_COMPARE_(0, a, >, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) CR_COMPARE_(1, a, <, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) CR_COMPARE_(0, a, <, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) CR_COMPARE_(1, a, >=, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) CR_COMPARE_(0, a, >=, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) CR_COMPARE_(1, a, <=, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) CR_COMPARE_(0, a, <=, b, __VA_ARGS__)
#define cr_assert_null(p, ...) CR_COMPARE_(1, p, ==, NULL, __VA_ARGS__)
#define cr_expect_null(p, ...) CR_COMPARE_(0, p, ==, NULL, __VA_ARGS__)
#define cr_assert_not_null(p, ...) CR_COMPARE_(1, p, !=, NULL, __VA_ARGS__)
#define cr_expect_not_null(p, ...) CR_COMPARE_(0, p, !=, NULL, __VA_ARGS__)

#define CR_TEXTS_(fatal, a, op, b, ...) \
  CR_CHECK_(fatal, strcmp(a, b) op 0, #a " " #op " " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) CR_TEXTS_(1, a, ==, b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) CR_TEXTS_(0, a, ==, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) CR_TEXTS_(1, a, !=, b, __VA_ARGS__)

#define CR_BYTES_(fatal, a, b, n, ...) \
  CR_CHECK_(fatal, memcmp(a, b, n) == 0, #a " == " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) CR_BYTES_(0, a, b, n, __VA_ARGS__)

#define cr_skip_test(...) criterion_skip(" " __VA_ARGS__)

#endif /* KVEVICT_TESTS_CROSS_CRITERION_H_ */
