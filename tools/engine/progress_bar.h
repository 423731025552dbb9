// A progress bar on stderr.
#ifndef KVEVICT_TOOLS_ENGINE_PROGRESS_BAR_H_
#define KVEVICT_TOOLS_ENGINE_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace kvevict::tools {

// Drawn in place when stderr is a terminal, and erased when it is destroyed.
// Logs and pipes get a line every ten seconds.
class ProgressBar {
 public:
  ProgressBar(std::string label, uint64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(uint64_t done);

  // The line that is drawn after some seconds: the share done, the time taken,
  // and the time left if the rest is as fast.
  static std::string Line(const std::string& label, double share,
                          double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  uint64_t total_;
  bool is_drawn_;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_PROGRESS_BAR_H_
