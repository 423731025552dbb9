// Failures of the library as exceptions.
#ifndef KVEVICT_TOOLS_ENGINE_KVEVICT_ERROR_H_
#define KVEVICT_TOOLS_ENGINE_KVEVICT_ERROR_H_

#include <stdexcept>
#include <string>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

// A kvevict call that failed; what() is the library's sentence.
class KvevictError : public std::runtime_error {
 public:
  KvevictError(kvevict_status status, const std::string& message)
      : std::runtime_error(message), status(status) {}
  kvevict_status status;
};

inline void Check(kvevict_status status) {
  if (status != KVEVICT_OK) {
    throw KvevictError(status, kvevict_last_error_message());
  }
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_KVEVICT_ERROR_H_
