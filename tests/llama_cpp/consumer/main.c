/* A C program outside the tree, with an installed adapter. */
#include <kvevict-llama.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  struct llama_context_params params = llama_context_default_params();
  kvevict_llama* kv = NULL;
  if (kvevict_llama_create("snapkv:budget=64", NULL, &kv) != KVEVICT_OK) {
    puts(kvevict_llama_last_error_message());
    return 1;
  }
  kvevict_llama_install(kv, &params);
  if (params.cb_eval != &kvevict_llama_eval || params.cb_eval_user_data != kv) {
    return 1;
  }
  if (kvevict_llama_evict(kv, 0, NULL, NULL) !=
          KVEVICT_ERROR_INVALID_ARGUMENT ||
      strcmp(kvevict_llama_last_error_message(), "no context is attached") !=
          0) {
    return 1;
  }
  kvevict_llama_destroy(kv);
  printf("llama.cpp %s\n", llama_version());
  return 0;
}
