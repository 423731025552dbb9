#include <ctype.h>
#ifndef __wasi__
#include <pthread.h>
#endif

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(version, text_equals_the_macros) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", KVEVICT_VERSION_MAJOR,
           KVEVICT_VERSION_MINOR, KVEVICT_VERSION_PATCH);
  cr_assert_str_eq(kvevict_version(), text);
  cr_assert(kvevict_version() == kvevict_version(), "the text is not static");
}

Test(version, abi_version_equals_the_macro) {
  cr_assert_eq(kvevict_abi_version(), KVEVICT_ABI_VERSION);
}

Test(status, every_status_has_its_name) {
  const struct {
    kvevict_status status;
    const char* name;
  } kRows[] = {
      {KVEVICT_OK, "OK"},
      {KVEVICT_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
      {KVEVICT_ERROR_UNSUPPORTED, "UNSUPPORTED"},
      {KVEVICT_ERROR_UNAVAILABLE, "UNAVAILABLE"},
      {KVEVICT_ERROR_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
      {KVEVICT_ERROR_INTERNAL, "INTERNAL"},
      {KVEVICT_ERROR_DEVICE, "DEVICE"},
      {7, "UNKNOWN"},
      {-1, "UNKNOWN"},
      {INT32_MAX, "UNKNOWN"},
      {INT32_MIN, "UNKNOWN"},
  };
  for (size_t i = 0; i < sizeof kRows / sizeof kRows[0]; ++i) {
    cr_expect_str_eq(kvevict_status_name(kRows[i].status), kRows[i].name);
  }
}

/* Each test is its own process, so nothing has failed yet. */
Test(status, message_is_empty_before_the_first_failure) {
  cr_assert_str_eq(kvevict_last_error_message(), "");
  uint32_t budget;
  EXPECT_OK(kvevict_auto_budget(4096, UINT64_C(1) << 40, &budget));
  cr_assert_str_eq(kvevict_last_error_message(), "");
}

Test(status, success_leaves_the_message_alone) {
  EXPECT_INVALID(kvevict_auto_budget(4096, 0, NULL), "out_budget");
  char before[512];
  snprintf(before, sizeof before, "%s", kvevict_last_error_message());
  uint32_t budget;
  EXPECT_OK(kvevict_auto_budget(4096, 0, &budget));
  cr_assert_str_eq(kvevict_last_error_message(), before);
}

Test(status, next_failure_replaces_the_message) {
  EXPECT_INVALID(kvevict_auto_budget(4096, 0, NULL), "out_budget");
  uint32_t budget;
  EXPECT_INVALID(kvevict_auto_budget(0, 0, &budget), "max_tokens", "0");
  cr_assert(strstr(kvevict_last_error_message(), "out_budget") == NULL);
}

#ifndef __wasi__ /* which has no threads */
static void* MessageOfThisThread(void* unused) {
  (void)unused;
  return (void*)(uintptr_t)(kvevict_last_error_message()[0] == '\0');
}

Test(status, message_belongs_to_the_thread) {
  EXPECT_INVALID(kvevict_auto_budget(4096, 0, NULL), "out_budget");
  pthread_t thread;
  void* is_empty = NULL;
  cr_assert_eq(pthread_create(&thread, NULL, MessageOfThisThread, NULL), 0);
  cr_assert_eq(pthread_join(thread, &is_empty), 0);
  cr_assert(is_empty != NULL, "another thread saw this thread's message");
}
#endif

/* The message stays short and ASCII, however long and strange a caller's text
 * is. */
Test(status, message_is_ascii_and_bounded) {
  static char text[100000];
  for (size_t i = 0; i + 1 < sizeof text; ++i) text[i] = (char)(128 + i % 100);
  EXPECT_NO_POLICY(text, "column");
  const char* message = kvevict_last_error_message();
  cr_assert(strlen(message) < 2000);
  for (; *message != '\0'; ++message) {
    EXPECT(isprint((unsigned char)*message), "byte 0x%02x in the message",
           (unsigned char)*message);
  }
}
