#include "core/status.h"

#include <criterion/criterion.h>

#include <string>

namespace kvevict {
namespace {

TestSuite(status);

Status FailTwice(bool* reached) {
  KV_RETURN_IF_ERROR(Status());
  KV_RETURN_IF_ERROR(Unsupported("first %d", 1));
  *reached = true;
  return Internal("second");
}

Test(status, macro_returns_the_first_failure) {
  bool reached = false;
  cr_assert_eq(FailTwice(&reached).code(), KVEVICT_ERROR_UNSUPPORTED);
  cr_assert_not(reached);
  cr_assert_str_eq(LastErrorMessage(), "first 1");
}

Test(status, prefix_goes_in_front) {
  const Status status =
      Prefixed(InvalidArgument("k.dtype %d", 9), "views[%u]: ", 3u);
  cr_assert_eq(status.code(), KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_assert_str_eq(LastErrorMessage(), "views[3]: k.dtype 9");
}

Test(status, long_messages_are_cut_not_overrun) {
  const std::string text(2000, 'x');
  (void)InvalidArgument("%s", text.c_str());
  const size_t length = std::string(LastErrorMessage()).size();
  cr_assert_lt(length, 1024);
  cr_assert_gt(length, 100);
  for (int i = 0; i < 100; ++i) {
    (void)Prefixed(Status(KVEVICT_ERROR_INTERNAL), "prefix %d: ", i);
  }
  cr_assert_leq(std::string(LastErrorMessage()).size(), length);
  (void)Prefixed(Status(KVEVICT_ERROR_INTERNAL), "%s", text.c_str());
  cr_assert_leq(std::string(LastErrorMessage()).size(), length);
}

}  // namespace
}  // namespace kvevict
