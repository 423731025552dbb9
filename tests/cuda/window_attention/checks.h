// The promises of window_attention.cu for any variant. The first failure goes
// to stderr and ends the program.
#ifndef KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_CHECKS_H_
#define KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_CHECKS_H_

#include <initializer_list>
#include <span>
#include <string>

#include "tests/cuda/window_attention/launch.h"

namespace kvevict::cuda {

// Fails unless `error` is empty.
void Expect(const char* what, const std::string& error);

// Checks all variants. Those of the two lists are also run in other orders of
// threads, and with numbers that are not finite.
void CheckVariants(const char* seed, std::span<const AttentionVariant> variants,
                   std::initializer_list<const char*> in_any_order,
                   std::initializer_list<const char*> by_formula);

// Layers of three lengths in one launch, one of them with its row log-sum-exps.
void MatchesTheOracle(const AttentionVariant& variant, bool one_warp_ahead,
                      Random& random);

// Dot products round within the bound of docs/cuda.md, by a tensor core of every
// kind. Prints how far they are off. The plain form has no kinds.
void KeepsToTheErrorBound(const AttentionVariant& variant, Random& random);

// All orders of threads give the same bytes.
void IsTheSameInAnyOrderOfThreads(const AttentionVariant& variant,
                                  Random& random);

// Rows may have other orders than the token-major one of the other tests.
void TakesAnyLayout(const AttentionVariant& variant, Random& random);

// NaN, infinity and logits that f32 cannot exponentiate behave as
// core/kernels/window_attention.h says.
void KeepsToTheFormula(const AttentionVariant& variant);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_CHECKS_H_
