#include "megatron/report/console_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace megatron::report {
namespace {

constexpr std::pair<std::string_view, std::string_view> kMetricNames[] = {
    {"consumed samples", "consumed_train_samples"},
    {"consumed tokens", "consumed_train_tokens"},
    {"elapsed time per iteration (ms)", "elapsed_ms_per_iteration"},
    {"throughput per GPU (TFLOP/s/GPU)", "tflops_per_gpu"},
    {"throughput", "tflops_per_gpu"},
    {"TFLOPs", "tflops_per_gpu"},
    {"MFU", "mfu_percent"},
    {"HFU", "hfu_percent"},
    {"mfu-percent", "mfu_percent"},
    {"hfu-percent", "hfu_percent"},
    {"learning rate", "learning_rate"},
    {"learning-rate", "learning_rate"},
    {"global batch size", "global_batch_size"},
    {"batch-size", "global_batch_size"},
    {"loss scale", "loss_scale"},
    {"loss-scale", "loss_scale"},
    {"grad norm", "grad_norm"},
    {"grad-norm", "grad_norm"},
    {"num zeros", "num_zeros"},
    {"num-zeros", "num_zeros"},
    {"params norm", "params_norm"},
    {"params-norm", "params_norm"},
    {"curriculum seqlen", "curriculum_seqlen"},
    {"number of skipped iterations", "skipped_iterations"},
    {"number of nan iterations", "nan_iterations"},
};

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Removes the text up to the mark, and the mark, from the front. False if it is not there.
bool skip_past(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == text.npos) return false;
  text.remove_prefix(at + mark.size());
  return true;
}

// A number at the front, without blanks before it; removed. "nan" and "inf" are numbers.
std::optional<double> take_number(std::string_view& text) {
  text = trimmed(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// An integer at the front that may be an iteration; removed.
std::optional<int64_t> take_iteration(std::string_view& text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > kMostIterations) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// Calls f(name, number) for each "name: number |"; a unit may follow the number. A line that ends
// within a field is cut, so that field is left out.
template <class F>
void each_field(std::string_view text, const F& f) {
  for (size_t bar = text.find('|'); bar != text.npos; bar = text.find('|')) {
    const std::string_view field = text.substr(0, bar);
    text.remove_prefix(bar + 1);
    const size_t colon = field.find(": ");
    if (colon == field.npos) continue;
    std::string_view number = field.substr(colon + 2);
    const std::string_view name = trimmed(field.substr(0, colon));
    if (const std::optional<double> value = take_number(number)) f(name, *value);
  }
}

class ConsoleReader {
 public:
  explicit ConsoleReader(RunHistory& history) : history_(history) {}

  void read(std::string_view line) {
    if (is_in_arguments_ || line.find(" arguments -") != line.npos) {
      read_argument(line);
    } else if (!read_iteration(line) && !read_validation(line) && !read_memory(line)) {
      read_result(line);
    }
  }

 private:
  // "  seq_length ...................... 1024"
  void read_argument(std::string_view line) {
    if (line.find("- end of arguments -") != line.npos) {
      is_in_arguments_ = false;
      const auto seq_length = history_.settings.find("seq_length");
      if (seq_length == history_.settings.end()) return;
      std::string_view text = seq_length->second;
      tokens_per_sample_ = take_number(text);
      return;
    }
    is_in_arguments_ = true;
    const size_t dots = line.find(" .");
    if (dots == line.npos) return;
    const size_t before = line.substr(0, dots).find_last_of(" \t:]");
    const size_t begin = before == line.npos ? 0 : before + 1;
    const std::string_view name = line.substr(begin, dots - begin);
    line.remove_prefix(dots + 1);
    line.remove_prefix(std::min(line.find_first_not_of('.'), line.size()));
    if (!name.empty()) history_.settings[std::string(name)] = trimmed(line);
  }

  // " iteration       10/      20 | consumed samples:           80 | ..."
  bool read_iteration(std::string_view line) {
    if (!skip_past(line, "iteration ")) return false;
    const std::optional<int64_t> iteration = take_iteration(line);
    if (!iteration || !line.starts_with('/')) return false;
    line.remove_prefix(1);
    if (!take_iteration(line) || !trimmed(line).starts_with('|')) return false;
    history_.begin_record(*iteration);
    double batch = 0;
    double ms = 0;
    double samples_per_second = 0;
    skip_past(line, "|");
    each_field(line, [&](std::string_view name, double value) {
      if (name == "elapsed time per iteration (s)") {
        name = "elapsed time per iteration (ms)";
        value *= 1000;
      }
      if (name == "global batch size") batch = value;
      if (name == "elapsed time per iteration (ms)") ms = value;
      if (name == "samples per second") samples_per_second = value;
      history_.add(metric_name(name), value);
    });
    if (samples_per_second == 0 && ms > 0) samples_per_second = batch / ms * 1000;
    if (tokens_per_sample_ && samples_per_second > 0) {
      history_.add("tokens_per_second", samples_per_second * *tokens_per_sample_);
    }
    iteration_ = iteration;
    return true;
  }

  // " validation loss at iteration 10 | lm loss value: 6.0E+00 | lm loss PPL: 4.3E+02 |", also of
  // another set of data, and with "on test set" behind the iteration.
  bool read_validation(std::string_view line) {
    const size_t at = line.find(" loss at ");
    if (at == line.npos) return false;
    std::string_view group = trimmed(line.substr(0, at));
    if (const size_t blank = group.rfind(' '); blank != group.npos) group.remove_prefix(blank + 1);
    const size_t bar = line.find('|', at);
    if (bar == line.npos) return false;
    const std::string_view place = line.substr(at, bar - at);
    std::string_view number = place;
    if (skip_past(number, "iteration ")) {
      if (const std::optional<int64_t> iteration = take_iteration(number)) iteration_ = iteration;
    }
    if (!iteration_) return false;
    history_.begin_record(*iteration_);
    const std::string_view data = place.find(" test ") == place.npos ? "validation" : "test";
    const bool is_plain = group == "validation" || group == "test";
    each_field(line.substr(bar + 1), [&](std::string_view name, double value) {
      const size_t blank = name.rfind(' ');
      if (blank == name.npos) return;
      const std::string_view kind = name.substr(blank + 1);
      std::string series = is_plain ? "" : "lm-loss-validation/" + std::string(group) + "/";
      series += name.substr(0, blank);
      series += ' ';
      series += data;
      if (kind == "PPL") series += " ppl";
      if (kind == "PPL" || kind == "value") history_.add(series, value);
    });
    return true;
  }

  bool read_memory(std::string_view line) {
    if (skip_past(line, "> memory plan: ")) {
      // "parameters 0.3 MiB, gradients 1.20 GiB"; the lines below have no such list.
      std::map<std::string, double> plan;
      while (!line.empty()) {
        const size_t comma = std::min(line.find(','), line.size());
        const std::string_view part = trimmed(line.substr(0, comma));
        line.remove_prefix(std::min(comma + 1, line.size()));
        const size_t digit = part.find_first_of("0123456789");
        if (digit == part.npos || digit == 0) return true;
        std::string_view rest = part.substr(digit);
        const std::optional<double> value = take_number(rest);
        rest = trimmed(rest);
        if (!value || (rest != "MiB" && rest != "GiB")) return true;
        plan[std::string(trimmed(part.substr(0, digit)))] =
            *value * (rest == "MiB" ? 0x1p20 : 0x1p30);
      }
      history_.planned_memory = std::move(plan);
      return true;
    }
    if (!skip_past(line, " memory (MB) |")) return false;
    const std::string whole = std::string(line) + '|';  // its last field has no bar
    each_field(whole, [&](std::string_view name, double value) {
      double& most = history_.measured_memory[std::string(name)];
      most = std::max(most, value * 0x1p20);
    });
    return true;
  }

  // " validation results on LAMBADA | number correct: 1.0E+00 | ... | avg accuracy: 5.0E-01"
  void read_result(std::string_view line) {
    if (!skip_past(line, " results on ")) return;
    const size_t bar = line.find('|');
    if (bar == line.npos) return;
    const std::string task(trimmed(line.substr(0, bar)));
    const std::string whole = std::string(line.substr(bar + 1)) + '|';
    each_field(whole, [&](std::string_view name, double value) {
      history_.results[task][std::string(name)] = value;
    });
  }

  RunHistory& history_;
  bool is_in_arguments_ = false;
  std::optional<double> tokens_per_sample_;
  std::optional<int64_t> iteration_;
};

}  // namespace

std::string_view metric_name(std::string_view name) {
  const auto* const found =
      std::ranges::find(kMetricNames, name, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kMetricNames) ? name : found->second;
}

void read_console(RunHistory& history, std::string_view text) {
  ConsoleReader reader(history);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    reader.read(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace megatron::report
