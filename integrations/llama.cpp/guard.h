// Runs the body of a C function: a failure becomes its status, and the sentence
// of kvevict_llama_last_error_message().
#ifndef KVEVICT_INTEGRATIONS_LLAMA_GUARD_H_
#define KVEVICT_INTEGRATIONS_LLAMA_GUARD_H_

#include <new>

#include "error.h"

namespace kvevict::llama {

// api.cc
void Remember(const char* message) noexcept;

template <typename Work>
kvevict_status Guard(Work&& work) noexcept {
  try {
    work();
    return KVEVICT_OK;
  } catch (const Error& error) {
    Remember(error.what());
    return error.status;
  } catch (const std::bad_alloc&) {
    Remember("out of memory");
    return KVEVICT_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    Remember(error.what());
    return KVEVICT_ERROR_INTERNAL;
  } catch (...) {
    Remember("unknown failure");
    return KVEVICT_ERROR_INTERNAL;
  }
}

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_GUARD_H_
