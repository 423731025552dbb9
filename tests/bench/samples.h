// The measurements of repetitions.
#ifndef KVEVICT_TESTS_BENCH_SAMPLES_H_
#define KVEVICT_TESTS_BENCH_SAMPLES_H_

#include <algorithm>
#include <vector>

namespace kvevict::bench {

class Samples {
 public:
  void Add(double value) {
    values_.insert(std::upper_bound(values_.begin(), values_.end(), value),
                   value);
  }
  bool empty() const { return values_.empty(); }
  double Min() const { return values_.front(); }
  double Max() const { return values_.back(); }
  double Median() const {
    const size_t n = values_.size();
    return 0.5 * (values_[(n - 1) / 2] + values_[n / 2]);
  }

 private:
  std::vector<double> values_;  // ascending
};

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_SAMPLES_H_
