// Failures inside the adapter. They become a status and a sentence at its API.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_ERROR_H_
#define KVEVICT_INTEGRATIONS_LLAMA_ERROR_H_

#include <kvevict/kvevict.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace kvevict::llama {

struct Error : std::runtime_error {
  Error(kvevict_status status, const std::string& message)
      : std::runtime_error(message), status(status) {}
  kvevict_status status;
};

// Throws Error with the parts written one after another.
template <typename... Parts>
[[noreturn]] void Fail(kvevict_status status, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(status, text.str());
}

// Passes a failure of the library on.
inline void Check(kvevict_status status) {
  if (status != KVEVICT_OK) throw Error(status, kvevict_last_error_message());
}

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_ERROR_H_
