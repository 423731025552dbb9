/* What the generated code and hooks.go need from C beside the library itself. */
#ifndef KVEVICT_BINDINGS_GO_SUPPORT_H_
#define KVEVICT_BINDINGS_GO_SUPPORT_H_

#include <kvevict/all.h>
#include <stdint.h>

struct kv_go_error {
  int32_t code;
  char message[];
};

/* The calling thread's last failure as a kv_go_error, which takeError() frees. */
uintptr_t kv_go_take_error(kvevict_status status);

/* Addresses of hooks that call kvevictGoLog, kvevictGoParallel and
 * kvevictGoForward of hooks.go. */
uintptr_t kv_go_log_hook(void);
uintptr_t kv_go_parallel_hook(void);
uintptr_t kv_go_forward_hook(void);

/* Calls a kvevict_task_fn. */
void kv_go_run_task(uintptr_t run, uintptr_t task, uint32_t item,
                    uint32_t worker);

#endif /* KVEVICT_BINDINGS_GO_SUPPORT_H_ */
