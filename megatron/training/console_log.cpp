#include "megatron/training/console_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>

namespace megatron {
namespace {

// A NaN without the sign that fmt prints: Python has none, and it means nothing.
double unsigned_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

double& value_of(NamedValues& values, const std::string& name) {
  for (auto& [key, value] : values) {
    if (key == name) return value;
  }
  return values.emplace_back(name, 0.0).second;
}

std::string text_of(const IterationLine& line) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, " iteration {:8d}/{:8d} |", line.iteration, line.train_iters);
  fmt::format_to(out, " consumed samples: {:12d} |", line.consumed_samples);
  if (line.consumed_tokens) {
    fmt::format_to(out, " consumed tokens: {:12d} |", *line.consumed_tokens);
  }
  fmt::format_to(out, " elapsed time per iteration (ms): {:.1f} |", line.elapsed_ms);
  if (line.teraflops_per_device) {
    fmt::format_to(out, " throughput per GPU (TFLOP/s/GPU): {:.1f} |", *line.teraflops_per_device);
    if (line.mfu_percent) fmt::format_to(out, " MFU: {:.1f}% |", *line.mfu_percent);
    if (line.hfu_percent) fmt::format_to(out, " HFU: {:.1f}% |", *line.hfu_percent);
  }
  fmt::format_to(out, " learning rate: {:.3E} |", line.learning_rate);
  fmt::format_to(out, " global batch size: {:5d} |", line.global_batch_size);
  for (const auto& [name, value] : line.losses) {
    if (value > 0) fmt::format_to(out, " {}: {:.6E} |", name, value);
  }
  fmt::format_to(out, " loss scale: {:.1f} |", line.loss_scale);
  if (line.grad_norm) fmt::format_to(out, " grad norm: {:.3f} |", unsigned_nan(*line.grad_norm));
  if (line.num_zeros) fmt::format_to(out, " num zeros: {:.1f} |", *line.num_zeros);
  if (line.params_norm)
    fmt::format_to(out, " params norm: {:.3f} |", unsigned_nan(*line.params_norm));
  if (line.curriculum_seqlen) {
    fmt::format_to(out, " curriculum seqlen: {:5d} |", *line.curriculum_seqlen);
  }
  fmt::format_to(out, " number of skipped iterations: {:3d} |", line.skipped_iterations);
  fmt::format_to(out, " number of nan iterations: {:3d} |", line.nan_iterations);
  return text;
}

std::string validation_text(std::string_view data, std::string_view prefix,
                            const NamedValues& losses) {
  std::string text = fmt::format(" {} loss at {} | ", data, prefix);
  for (const auto& [name, value] : losses) {
    const double perplexity = std::exp(std::min(20.0, value));
    fmt::format_to(std::back_inserter(text), "{} value: {:.6E} | {} PPL: {:.6E} | ", name,
                   unsigned_nan(value), name, unsigned_nan(perplexity));
  }
  const std::string rule(text.size() + 1, '-');
  return rule + '\n' + text + '\n' + rule;
}

std::string datetime_text(std::string_view tag) {
  const std::time_t now = std::time(nullptr);
  return fmt::format("[{}] datetime: {:%Y-%m-%d %H:%M:%S} ", tag, fmt::localtime(now));
}

std::string duration_text(double seconds) {
  const int64_t total = std::llround(seconds);
  if (total >= 3600) return fmt::format("{}h{:02d}m", total / 3600, total / 60 % 60);
  return fmt::format("{}m{:02d}s", total / 60, total % 60);
}

std::string saving_text(int64_t iteration, std::string_view directory) {
  return fmt::format("saving checkpoint at iteration {:7d} to {}", iteration, directory);
}

std::string scheduled_text(int64_t iteration, std::string_view directory) {
  return fmt::format("  scheduled an async checkpoint save at iteration {:7d} to {}", iteration,
                     directory);
}

std::string saved_text(int64_t iteration, std::string_view directory) {
  return fmt::format("  successfully saved checkpoint at iteration {:7d} to {}", iteration,
                     directory);
}

}  // namespace megatron
