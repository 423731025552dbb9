// The inverse of a matrix in double, by rows.
#ifndef KVEVICT_TESTS_ORACLE_INVERSE_H_
#define KVEVICT_TESTS_ORACLE_INVERSE_H_

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvevict::oracle {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// The inverse by elimination with the largest pivot of each column.
inline Rows Inverse(Rows a) {
  const size_t n = a.size();
  Rows inverse(n, Row(n, 0.0));
  for (size_t i = 0; i < n; ++i) inverse[i][i] = 1.0;
  for (size_t k = 0; k < n; ++k) {
    size_t best = k;
    for (size_t i = k; i < n; ++i) {
      if (std::fabs(a[i][k]) > std::fabs(a[best][k])) best = i;
    }
    std::swap(a[k], a[best]);
    std::swap(inverse[k], inverse[best]);
    const double pivot = a[k][k];
    for (size_t j = 0; j < n; ++j) {
      a[k][j] /= pivot;
      inverse[k][j] /= pivot;
    }
    for (size_t i = 0; i < n; ++i) {
      const double factor = i == k ? 0.0 : a[i][k];
      for (size_t j = 0; j < n; ++j) {
        a[i][j] -= factor * a[k][j];
        inverse[i][j] -= factor * inverse[k][j];
      }
    }
  }
  return inverse;
}

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_INVERSE_H_
