#include "core/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kvevict {
namespace {

// A thread that fails for lack of memory must still find its buffer. In a
// library that was opened at run time glibc allocates thread-local data when a
// thread first touches it, and ends the process if it cannot. With the
// initial-exec model the data comes from the 1,664 bytes that each thread has
// to spare for such libraries; this is the smaller part of them. Other C
// libraries (musl) allocate for all threads when they open a library, and open
// no library of that model.
#ifdef __GLIBC__
#define KV_NO_LATE_ALLOCATION __attribute__((tls_model("initial-exec")))
#else
#define KV_NO_LATE_ALLOCATION
#endif

constexpr size_t kMessageBytes = 512;

KV_NO_LATE_ALLOCATION thread_local char last_error_message[kMessageBytes] = "";

Status Fail(kvevict_status code, const char* format, va_list args) {
  std::vsnprintf(last_error_message, kMessageBytes, format, args);
  // Messages are ASCII but may quote texts of the caller.
  for (char* c = last_error_message; *c != '\0'; ++c) {
    if (*c < ' ' || *c > '~') *c = '?';
  }
  return Status(code);
}

}  // namespace

#define KV_DEFINE_FAILURE(Name, code)         \
  Status Name(const char* format, ...) {      \
    va_list args;                             \
    va_start(args, format);                   \
    Status status = Fail(code, format, args); \
    va_end(args);                             \
    return status;                            \
  }

KV_DEFINE_FAILURE(InvalidArgument, KVEVICT_ERROR_INVALID_ARGUMENT)
KV_DEFINE_FAILURE(Unsupported, KVEVICT_ERROR_UNSUPPORTED)
KV_DEFINE_FAILURE(Unavailable, KVEVICT_ERROR_UNAVAILABLE)
KV_DEFINE_FAILURE(OutOfMemory, KVEVICT_ERROR_OUT_OF_MEMORY)
KV_DEFINE_FAILURE(Internal, KVEVICT_ERROR_INTERNAL)
KV_DEFINE_FAILURE(DeviceError, KVEVICT_ERROR_DEVICE)

#undef KV_DEFINE_FAILURE

Status Prefixed(Status status, const char* format, ...) {
  char sentence[kMessageBytes];
  std::memcpy(sentence, last_error_message, kMessageBytes);
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(last_error_message, kMessageBytes, format, args);
  va_end(args);
  if (n >= 0 && static_cast<size_t>(n) < kMessageBytes) {
    std::snprintf(last_error_message + n, kMessageBytes - n, "%s", sentence);
  }
  return status;
}

const char* LastErrorMessage() { return last_error_message; }

KeptErrorMessage::KeptErrorMessage() {
  static_assert(sizeof(message_) == kMessageBytes);
  std::memcpy(message_, last_error_message, kMessageBytes);
}

KeptErrorMessage::~KeptErrorMessage() {
  if (!is_kept_) return;
  std::memcpy(last_error_message, message_, kMessageBytes);
}

}  // namespace kvevict
