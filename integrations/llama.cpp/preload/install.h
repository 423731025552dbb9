// What a program that knows this library asks of the contexts that it makes. For any other
// program KVEVICT_POLICY asks for its first context.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_INSTALL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_INSTALL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvevict::llama_preload {

struct Order {
  std::string policy;
  // As in kvevict_llama_options.
  uint32_t query_rows = 0;
  std::string calibration = {};
  bool automatic = true;  // evicted after each decode
  uint32_t n_ctx_told =
      0;  // what llama_n_ctx() tells, if it is more than the cells
  bool unasked = false;  // the program knows nothing of it
};

// For the next context that the calling thread makes; nothing: takes an order back.
void SetNextOrder(std::optional<Order> order);
// For each context without an order of its own.
void SetOrderForAll(std::optional<Order> order);

// Sets the offsets of cb_eval and cb_eval_user_data in the llama_context_params that the
// program passes. They replace those of the headers.
void SetPlaces(size_t callback, size_t user_data);

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_INSTALL_H_
