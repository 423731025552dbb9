// Assertions of plain programs.
#ifndef KVEVICT_TESTS_THREAD_CHECK_H_
#define KVEVICT_TESTS_THREAD_CHECK_H_

#include <cstdio>
#include <cstdlib>

#include "kvevict/kvevict.h"

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
                   #condition);                                       \
      std::exit(1);                                                   \
    }                                                                 \
  } while (false)

#define CHECK_OK(call)                                                   \
  do {                                                                   \
    if ((call) != KVEVICT_OK) {                                          \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   kvevict_last_error_message());                        \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

#endif  // KVEVICT_TESTS_THREAD_CHECK_H_
