#include "megatron/training/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "megatron/training/console_log.h"

namespace megatron {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string bar_text(int64_t iteration, int64_t last_iteration, double loss,
                     double tokens_per_second, double seconds_left, int width) {
  const std::string text =
      fmt::format(" {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", iteration, last_iteration, loss,
                  tokens_per_second, duration_text(seconds_left));
  const int64_t room = std::min<int64_t>(30, width - static_cast<int64_t>(text.size()) - 3);
  if (room < 5) return text.substr(0, static_cast<size_t>(std::max(width - 1, 0)));
  const int64_t filled = last_iteration == 0 ? room : room * iteration / last_iteration;
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(room - filled), '-') + "]" + text;
}

ProgressBar::ProgressBar(int64_t first_iteration, int64_t last_iteration)
    : is_terminal_(::isatty(STDOUT_FILENO) == 1),
      first_iteration_(first_iteration),
      last_iteration_(last_iteration),
      started_(Clock::now()) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(int64_t iteration, double loss, int64_t tokens) {
  tokens_ += tokens;
  const auto now = Clock::now();
  if (!is_terminal_ || now - drawn_ < kRedrawInterval) return;
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const auto done = static_cast<double>(std::max<int64_t>(iteration - first_iteration_, 1));
  const double left = seconds / done * static_cast<double>(last_iteration_ - iteration);
  const std::string text = bar_text(iteration, last_iteration_, loss,
                                    static_cast<double>(tokens_) / seconds, left, terminal_width());
  std::fprintf(stdout, "\r\033[K%s", text.c_str());
  std::fflush(stdout);
  is_visible_ = true;
}

void ProgressBar::clear() {
  if (!is_visible_) return;
  std::fputs("\r\033[K", stdout);
  std::fflush(stdout);
  is_visible_ = false;
}

}  // namespace megatron
