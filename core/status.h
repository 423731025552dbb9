// How functions of the core report failure: by a code, and a sentence for the
// caller.
#ifndef KVEVICT_CORE_STATUS_H_
#define KVEVICT_CORE_STATUS_H_

#include "kvevict/kvevict.h"

namespace kvevict {

// The code of an outcome. The sentence that goes with a failure lies in a
// thread-local buffer, so that failing needs no memory.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;  // OK
  constexpr explicit Status(kvevict_status code) : code_(code) {}

  constexpr bool ok() const { return code_ == KVEVICT_OK; }
  constexpr kvevict_status code() const { return code_; }

 private:
  kvevict_status code_ = KVEVICT_OK;
};

// Each stores the printf-formatted sentence, which names parameter, value and
// bound, as the calling thread's last error message.
[[gnu::format(printf, 1, 2)]] Status InvalidArgument(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status Unsupported(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status Unavailable(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status OutOfMemory(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status Internal(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status DeviceError(const char* format, ...);

// Puts "view 3: " or the like in front of the last error message.
[[gnu::format(printf, 2, 3)]] Status Prefixed(Status status, const char* format,
                                              ...);

const char* LastErrorMessage();

// Restores the last error message at the end of its scope. It is for work whose
// failure is an answer and not the caller's failure.
class KeptErrorMessage {
 public:
  KeptErrorMessage();
  ~KeptErrorMessage();
  KeptErrorMessage(const KeptErrorMessage&) = delete;
  KeptErrorMessage& operator=(const KeptErrorMessage&) = delete;
  // Keeps the new message: the failure is the caller's after all.
  void Drop() { is_kept_ = false; }

 private:
  bool is_kept_ = true;
  char message_[512];
};

}  // namespace kvevict

#define KV_RETURN_IF_ERROR(expression)                               \
  do {                                                               \
    if (::kvevict::Status kv_status = (expression); !kv_status.ok()) \
      return kv_status;                                              \
  } while (false)

#endif  // KVEVICT_CORE_STATUS_H_
