// Functions of logits, in double precision.
#ifndef KVEVICT_TOOLS_LLAMA_LOG_SOFTMAX_H_
#define KVEVICT_TOOLS_LLAMA_LOG_SOFTMAX_H_

#include <cstdint>
#include <span>

namespace kvevict::tools {

double LogSumExp(std::span<const float> logits);

// log p(id).
double LogSoftmax(std::span<const float> logits, int32_t id);

// KL(p || q) of the two softmax distributions, in nats.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// The lowest index of the greatest logit.
int32_t ArgMax(std::span<const float> logits);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_LOG_SOFTMAX_H_
