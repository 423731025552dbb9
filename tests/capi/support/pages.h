/* Memory whose neighbours cannot be touched: reading or writing outside is a crash
 * (but in WebAssembly, which has no pages to protect). */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_PAGES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_PAGES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test_guarded {
  uint8_t* data;
  uint8_t* mapped;
  size_t mapped_bytes;
} test_guarded;

/* n_bytes of zeros that end where an inaccessible page begins, or begin where one
 * ends. */
test_guarded test_guarded_open(size_t n_bytes, int at_end);
void test_guarded_close(test_guarded pages);

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_PAGES_H_ */
