#include "capi/guard.h"

#define KV_STRING_OF(x) #x
#define KV_STRING(x) KV_STRING_OF(x)

extern "C" {

const char* kvevict_version(void) noexcept {
  return KV_STRING(KVEVICT_VERSION_MAJOR) "." KV_STRING(
      KVEVICT_VERSION_MINOR) "." KV_STRING(KVEVICT_VERSION_PATCH);
}

uint32_t kvevict_abi_version(void) noexcept { return KVEVICT_ABI_VERSION; }

const char* kvevict_last_error_message(void) noexcept {
  return kvevict::LastErrorMessage();
}

const char* kvevict_status_name(kvevict_status status) noexcept {
  switch (status) {
    case KVEVICT_OK:
      return "OK";
    case KVEVICT_ERROR_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case KVEVICT_ERROR_UNSUPPORTED:
      return "UNSUPPORTED";
    case KVEVICT_ERROR_UNAVAILABLE:
      return "UNAVAILABLE";
    case KVEVICT_ERROR_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case KVEVICT_ERROR_INTERNAL:
      return "INTERNAL";
    case KVEVICT_ERROR_DEVICE:
      return "DEVICE";
  }
  return "UNKNOWN";
}

}  // extern "C"
