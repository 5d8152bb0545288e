#include "megatron/training/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "megatron/training/console_log.h"

namespace megatron {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

std::FILE* found_terminal() {
  const char* const term = std::getenv("TERM");
  const char* const no_color = std::getenv("NO_COLOR");
  if (term != nullptr && std::string_view(term) == "dumb") return nullptr;
  if (no_color != nullptr && *no_color != '\0') return nullptr;
  if (::isatty(STDOUT_FILENO) == 1) return stdout;
  struct stat output = {};
  const bool is_read = ::fstat(STDOUT_FILENO, &output) == 0 &&
                       (S_ISFIFO(output.st_mode) || S_ISSOCK(output.st_mode));
  return !is_read && ::isatty(STDERR_FILENO) == 1 ? stderr : nullptr;
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

TerminalLine::TerminalLine() : terminal_(found_terminal()) {}

int TerminalLine::width() const {
  winsize size{};
  const bool is_known =
      terminal_ != nullptr && ::ioctl(::fileno(terminal_), TIOCGWINSZ, &size) == 0;
  return is_known && size.ws_col != 0 ? size.ws_col : 80;
}

void TerminalLine::draw(std::string_view text) {
  if (terminal_ == nullptr) return;
  const std::string shown(text.substr(0, static_cast<size_t>(std::max(width() - 1, 0))));
  std::fprintf(terminal_, "\r\033[K%s", shown.c_str());
  std::fflush(terminal_);
  is_visible_ = true;
}

void TerminalLine::clear() {
  if (!is_visible_) return;
  std::fputs("\r\033[K", terminal_);
  std::fflush(terminal_);
  is_visible_ = false;
}

ProgressBar::ProgressBar(int64_t first_iteration, int64_t last_iteration)
    : first_iteration_(first_iteration), last_iteration_(last_iteration), started_(Clock::now()) {}

void ProgressBar::update(int64_t iteration, double loss, int64_t tokens) {
  tokens_ += tokens;
  const auto now = Clock::now();
  if (!line_.is_shown() || now - drawn_ < kRedrawInterval) return;
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const auto done = static_cast<double>(std::max<int64_t>(iteration - first_iteration_, 1));
  const double left = seconds / done * static_cast<double>(last_iteration_ - iteration);
  line_.draw(bar_text(iteration, last_iteration_, loss, static_cast<double>(tokens_) / seconds,
                      left, line_.width()));
}

EvaluationProgress::EvaluationProgress(TerminalLine* line, int64_t num_batches,
                                       std::chrono::milliseconds interval)
    : line_(line),
      num_batches_(num_batches),
      interval_(line != nullptr && line->is_shown() ? kRedrawInterval : interval),
      started_(Clock::now()),
      shown_(started_) {}

void EvaluationProgress::update(int64_t num_done, std::string_view value) {
  const auto now = Clock::now();
  if (line_ == nullptr || num_done <= 0 || now - shown_ < interval_) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double left =
      seconds / static_cast<double>(num_done) * static_cast<double>(num_batches_ - num_done);
  const std::string text =
      fmt::format("evaluating: {}/{} batches, {}{}{} left", num_done, num_batches_, value,
                  value.empty() ? "" : ", ", duration_text(left));
  if (line_->is_shown()) return line_->draw(text);
  // One write, as other processes write there, too.
  std::fputs((text + "\n").c_str(), stderr);
}

void EvaluationProgress::clear() {
  if (line_ != nullptr) line_->clear();
}

}  // namespace megatron
