// CUDA is unavailable in a program without a dynamic linker, and nothing crashes.
#include <cstdio>
#include <cstring>

#include "kvevict/kvevict.h"

int main(int, char** argv) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.device = KVEVICT_DEVICE_CUDA;
  options.libcuda_path = argv[1];
  kvevict_context* context = nullptr;
  const kvevict_status status = kvevict_context_create(&options, &context);
  std::puts(kvevict_last_error_message());
  return status == KVEVICT_ERROR_UNAVAILABLE &&
                 std::strstr(kvevict_last_error_message(), "static program")
             ? 0
             : 1;
}
