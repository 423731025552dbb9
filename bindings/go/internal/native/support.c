#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

uintptr_t kv_go_take_error(kvevict_status status) {
  const char* message = kvevict_last_error_message();
  size_t size = strlen(message) + 1;
  struct kv_go_error* error = malloc(sizeof *error + size);
  if (!error) abort(); /* as Go does without memory */
  error->code = status;
  memcpy(error->message, message, size);
  return (uintptr_t)error;
}

/* Go sees user_data as a number: a small one is no legal pointer to its collector. */
static void log_hook(kvevict_log_level level, const char* message,
                     void* user_data) {
  kvevictGoLog(level, (char*)message, (uintptr_t)user_data);
}

static void parallel_hook(uint32_t n_items, kvevict_task_fn run, void* task,
                          void* user_data) {
  kvevictGoParallel(n_items, (uintptr_t)run, (uintptr_t)task,
                    (uintptr_t)user_data);
}

static kvevict_status forward_hook(uint32_t first_token, uint32_t n_tokens,
                                   void* user_data) {
  return (kvevict_status)kvevictGoForward(first_token, n_tokens,
                                          (uintptr_t)user_data);
}

uintptr_t kv_go_log_hook(void) { return (uintptr_t)log_hook; }

uintptr_t kv_go_parallel_hook(void) { return (uintptr_t)parallel_hook; }

uintptr_t kv_go_forward_hook(void) { return (uintptr_t)forward_hook; }

void kv_go_run_task(uintptr_t run, uintptr_t task, uint32_t item,
                    uint32_t worker) {
  ((kvevict_task_fn)run)((void*)task, item, worker);
}
