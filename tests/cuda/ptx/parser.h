// PTX text to its syntax: modules of entry functions, without calls.
#ifndef KVEVICT_TESTS_CUDA_PTX_PARSER_H_
#define KVEVICT_TESTS_CUDA_PTX_PARSER_H_

#include <string_view>

#include "tests/cuda/ptx/syntax.h"

namespace kvevict::ptx {

// Throws Error, with the line, at what it does not know.
Syntax Parse(std::string_view text);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_CUDA_PTX_PARSER_H_
