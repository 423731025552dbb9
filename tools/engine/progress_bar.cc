#include "tools/engine/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

constexpr int kWidth = 30;
constexpr std::chrono::milliseconds kRedraw{50};
constexpr std::chrono::seconds kLog{10};

}  // namespace

ProgressBar::ProgressBar(std::string label, uint64_t total)
    : label_(std::move(label)),
      total_(std::max<uint64_t>(total, 1)),
      is_drawn_(ErrorIsTerminal()),
      start_(Clock::now()),
      next_(is_drawn_ ? start_ : start_ + kLog) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\x1b[K", stderr);
}

std::string ProgressBar::Line(const std::string& label, double share,
                              double seconds) {
  const int filled = static_cast<int>(share * kWidth);
  std::string line =
      fmt::format("{} [{:=<{}}{: <{}}] {:3.0f} % {:.1f} s", label, "", filled,
                  "", kWidth - filled, 100 * share, seconds);
  if (share > 0) {
    line += fmt::format(", {:.1f} s left", seconds / share - seconds);
  }
  return line;
}

void ProgressBar::Update(uint64_t done) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + (is_drawn_ ? Clock::duration(kRedraw) : kLog);
  const double share =
      std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = Line(label_, share, seconds);
  fmt::print(stderr, "{}{}{}", is_drawn_ ? "\r" : "", line,
             is_drawn_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

}  // namespace kvevict::tools
