/* Cases that run once per parameter, see criterion.h. */
#ifndef KVEVICT_TESTS_CROSS_PARAMETERIZED_H_
#define KVEVICT_TESTS_CROSS_PARAMETERIZED_H_

#include <criterion/criterion.h>

#define ParameterizedTestParameters(suite_, name_) \
  static struct criterion_test_params suite_##_##name_##_parameters(void)

#define ParameterizedTest(parameter_, suite_, name_, ...)                 \
  static void suite_##_##name_##_of(void* parameter);                     \
  CR_ADD_(suite_##_##name_, #suite_, #name_, NULL, suite_##_##name_##_of, \
          suite_##_##name_##_parameters, {__VA_ARGS__}, NULL)             \
  static void suite_##_##name_##_run(parameter_);                         \
  static void suite_##_##name_##_of(void* parameter) {                    \
    suite_##_##name_##_run(parameter);                                    \
  }                                                                       \
  static void suite_##_##name_##_run(parameter_)

#define cr_make_param_array(type_, array_, length_) \
  ((struct criterion_test_params){sizeof(type_), (void*)(array_), (length_)})

#endif /* KVEVICT_TESTS_CROSS_PARAMETERIZED_H_ */
