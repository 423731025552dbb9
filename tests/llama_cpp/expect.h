// What tests expect of messages and statuses.
#ifndef KVEVICT_TESTS_LLAMA_CPP_EXPECT_H_
#define KVEVICT_TESTS_LLAMA_CPP_EXPECT_H_

#include <criterion/criterion.h>
#include <kvevict-llama.h>

#include "tests/expect_part.h"

namespace kvevict::tests {

// The last call of the adapter had this status, and its message has this part.
inline void ExpectStatus(kvevict_status wanted, kvevict_status got,
                         const char* part) {
  cr_expect(got == wanted, "status %d for \"%s\"", got, part);
  ExpectPart(kvevict_llama_last_error_message(), part);
}
inline void ExpectInvalid(kvevict_status got, const char* part) {
  ExpectStatus(KVEVICT_ERROR_INVALID_ARGUMENT, got, part);
}
inline void ExpectUnsupported(kvevict_status got, const char* part) {
  ExpectStatus(KVEVICT_ERROR_UNSUPPORTED, got, part);
}

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_LLAMA_CPP_EXPECT_H_
