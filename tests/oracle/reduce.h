// Reduces several numbers to one: mean, maximum or sum. NaN gives NaN.
#ifndef KVEVICT_TESTS_ORACLE_REDUCE_H_
#define KVEVICT_TESTS_ORACLE_REDUCE_H_

#include <cmath>
#include <vector>

#include "kvevict/kvevict.h"

namespace kvevict::oracle {

inline double Reduce(const std::vector<double>& terms, kvevict_reduce how) {
  double sum = 0.0;
  double highest = terms[0];
  for (double term : terms) {
    sum += term;
    if (std::isnan(term) || term > highest) highest = term;
    if (std::isnan(highest)) return highest;
  }
  if (how == KVEVICT_REDUCE_MAX) return highest;
  return how == KVEVICT_REDUCE_SUM ? sum
                                   : sum / static_cast<double>(terms.size());
}

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_REDUCE_H_
