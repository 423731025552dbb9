// Constants of the oracle's error bounds and scores.
#ifndef KVEVICT_TESTS_ORACLE_NUMBERS_H_
#define KVEVICT_TESTS_ORACLE_NUMBERS_H_

#include <limits>

inline constexpr double kUnit = 0x1p-24;  // unit roundoff of f32
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

#endif  // KVEVICT_TESTS_ORACLE_NUMBERS_H_
