#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace megatron {

// A line at the foot of a terminal that is rewritten: on standard output if that is a terminal, on
// standard error if only that is one and standard output is no pipe, whose reader may write to the
// same terminal. Without a terminal, with TERM=dumb or with NO_COLOR, nothing is written.
class TerminalLine {
 public:
  TerminalLine();
  // On `terminal`; null: writes nothing.
  explicit TerminalLine(std::FILE* terminal) : terminal_(terminal) {}
  ~TerminalLine() { clear(); }
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  bool is_shown() const { return terminal_ != nullptr; }
  int width() const;
  // Draws the text instead of the last one, cut to the width.
  void draw(std::string_view text);
  // Erases the line before other output.
  void clear();

 private:
  std::FILE* terminal_;
  bool is_visible_ = false;
};

// The progress of training: bar, iteration, loss, tokens/s, time left. Redrawn at most ten times a
// second.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t first_iteration, int64_t last_iteration);

  void update(int64_t iteration, double loss, int64_t tokens);
  // Erases the bar before other output; the next update draws it again.
  void clear() { line_.clear(); }
  // The line of the bar, for other progress while it is not updated.
  TerminalLine& line() { return line_; }

 private:
  using Clock = std::chrono::steady_clock;

  TerminalLine line_;
  const int64_t first_iteration_;
  const int64_t last_iteration_;
  const Clock::time_point started_;
  Clock::time_point drawn_;
  int64_t tokens_ = 0;
};

// The progress of an evaluation: batches of all, a running value, time left. Without a terminal it
// is a line on standard error, at most once in `interval`.
class EvaluationProgress {
 public:
  // `line` outlives this object; null: shows nothing.
  EvaluationProgress(TerminalLine* line, int64_t num_batches,
                     std::chrono::milliseconds interval = std::chrono::seconds(10));
  ~EvaluationProgress() { clear(); }
  EvaluationProgress(const EvaluationProgress&) = delete;
  EvaluationProgress& operator=(const EvaluationProgress&) = delete;

  // After `num_done` batches; `value` is "lm loss 3.2500", or empty.
  void update(int64_t num_done, std::string_view value);
  // Erases the line before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  TerminalLine* const line_;
  const int64_t num_batches_;
  const Clock::duration interval_;
  const Clock::time_point started_;
  Clock::time_point shown_;
};

// The text of the bar, at most `width` columns.
std::string bar_text(int64_t iteration, int64_t last_iteration, double loss,
                     double tokens_per_second, double seconds_left, int width);

}  // namespace megatron
