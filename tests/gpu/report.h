// The checks and their results.
#ifndef KVEVICT_TESTS_GPU_REPORT_H_
#define KVEVICT_TESTS_GPU_REPORT_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace kvevict::gpu {

class Report {
 public:
  // The first failure may end the program.
  explicit Report(bool ends_at_failure = false)
      : ends_at_failure_(ends_at_failure) {}

  // Runs a check and prints a line. A check throws or calls Fail() if something
  // is wrong.
  void Check(const std::string& name, const std::function<void()>& check);
  // Notes a failure of the check that runs; it goes on.
  void Fail(const std::string& what);
  void FailIf(bool wrong, const std::string& what) {
    if (wrong) Fail(what);
  }
  // An empty difference is no failure.
  void Expect(const std::string& difference) {
    if (!difference.empty()) Fail(difference);
  }
  // Notes a figure of the check that runs.
  void Note(const std::string& name, double value);

  // Says why checks cannot run here.
  void Skip(const std::string& why);

  int n_skipped() const { return n_skipped_; }
  int n_passed() const { return n_passed_; }
  int n_failed() const { return n_failed_; }
  const nlohmann::json& checks() const { return checks_; }

 private:
  const bool ends_at_failure_;
  nlohmann::json checks_ = nlohmann::json::array();
  nlohmann::json current_;
  int n_failures_ = 0;  // in the check that runs
  int n_passed_ = 0;
  int n_failed_ = 0;
  int n_skipped_ = 0;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_REPORT_H_
