// A message that must have a part.
#ifndef KVEVICT_TESTS_EXPECT_PART_H_
#define KVEVICT_TESTS_EXPECT_PART_H_

#include <criterion/criterion.h>

#include <string>

namespace kvevict::tests {

inline void ExpectPart(const std::string& text, const std::string& part) {
  cr_expect(text.find(part) != std::string::npos, "no \"%s\" in \"%s\"",
            part.c_str(), text.c_str());
}

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_EXPECT_PART_H_
