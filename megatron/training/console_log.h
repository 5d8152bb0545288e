#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

// Named losses in their printing order: "lm loss", "sop loss".
using NamedValues = std::vector<std::pair<std::string, double>>;
// The value of that name; appended as 0 if missing.
double& value_of(NamedValues& values, const std::string& name);

// One training line. Users grep these; field names, widths and digits are Megatron-LM's.
struct IterationLine {
  int64_t iteration = 0;
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;
  std::optional<int64_t> consumed_tokens = {};
  double elapsed_ms = 0;  // per iteration
  std::optional<double> teraflops_per_device;
  std::optional<double> mfu_percent;  // printed behind the throughput
  std::optional<double> hfu_percent;
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  NamedValues losses;  // means over the advanced iterations; only those above 0 are printed
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<double> num_zeros;
  std::optional<double> params_norm;
  std::optional<int64_t> curriculum_seqlen = {};
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
};
std::string text_of(const IterationLine& line);

// The three lines of an evaluation of `data`, which is "validation" or the name of a group: text
// between two rules of dashes. PPL = exp(min(20, loss)).
std::string validation_text(std::string_view data, std::string_view prefix,
                            const NamedValues& losses);

// "[before the start of training step] datetime: 2024-01-31 12:00:00 "
std::string datetime_text(std::string_view tag);

// "2h05m", "3m20s"
std::string duration_text(double seconds);

// "saving checkpoint at iteration      20 to DIR" and the line after it.
std::string saving_text(int64_t iteration, std::string_view directory);
// "  scheduled an async checkpoint save at iteration      20 to DIR", if that line comes later.
std::string scheduled_text(int64_t iteration, std::string_view directory);
std::string saved_text(int64_t iteration, std::string_view directory);

}  // namespace megatron
