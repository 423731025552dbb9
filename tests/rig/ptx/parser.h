// Parses PTX text: modules of entry functions without calls.
#ifndef KVEVICT_TESTS_RIG_PTX_PARSER_H_
#define KVEVICT_TESTS_RIG_PTX_PARSER_H_

#include <string_view>

#include "tests/rig/ptx/syntax.h"

namespace kvevict::ptx {

// Throws Error with the line at anything unknown.
Syntax Parse(std::string_view text);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_PARSER_H_
