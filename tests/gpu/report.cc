#include "tests/gpu/report.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>

namespace kvevict::gpu {

void Report::Check(const std::string& name,
                   const std::function<void()>& check) {
  current_ = {{"name", name}};
  n_failures_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  try {
    check();
  } catch (const std::exception& e) {
    Fail(e.what());
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  current_["passed"] = n_failures_ == 0;
  current_["seconds"] = seconds.count();
  checks_.push_back(current_);
  ++(n_failures_ == 0 ? n_passed_ : n_failed_);
  fmt::print("[{}] {} ({:.1f} s)\n", n_failures_ == 0 ? "pass" : "FAIL", name,
             seconds.count());
  std::fflush(stdout);
}

void Report::Fail(const std::string& what) {
  constexpr int kMostPrinted = 5;
  if (n_failures_ < kMostPrinted) {
    fmt::print("       {}\n", what);
    current_["failures"].push_back(what);
  }
  ++n_failures_;
  if (ends_at_failure_) std::_Exit(1);
}

void Report::Skip(const std::string& why) {
  fmt::print("[skip] {}\n", why);
  ++n_skipped_;
}

void Report::Note(const std::string& name, double value) {
  current_["figures"][name] = value;
}

}  // namespace kvevict::gpu
