#include "annex/accelerate/memory_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

constexpr int64_t kFp32 = 4;

class Sizes {
 public:
  Sizes(const json& config, const std::string& source) : config_(config), source_(source) {}

  int64_t at(const char* key) const {
    if (!config_.contains(key) || !config_[key].is_number_integer()) {
      throw ConfigError(fmt::format("{}: {} must be an integer", source_, key));
    }
    return config_[key].get<int64_t>();
  }
  int64_t at(const char* key, int64_t otherwise) const {
    return config_.contains(key) && !config_[key].is_null() ? at(key) : otherwise;
  }

 private:
  const json& config_;
  const std::string& source_;
};

ModelSize size_of(int64_t embedding, int64_t layer, int64_t layers, int64_t rest,
                  int64_t buffer_bytes, int64_t largest) {
  ModelSize size;
  size.parameters = embedding + layers * layer + rest;
  size.total_bytes = size.parameters * kFp32 + buffer_bytes;
  size.largest_layer_bytes = std::max(largest, layer * kFp32);
  return size;
}

ModelSize gpt2_size(const Sizes& sizes) {
  const int64_t h = sizes.at("n_embd");
  const int64_t f = sizes.at("n_inner", 4 * h);
  const int64_t words = sizes.at("vocab_size") * h;
  const int64_t layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h;
  return size_of(words + sizes.at("n_positions") * h, layer, sizes.at("n_layer"), 2 * h, 0,
                 words * kFp32);
}

ModelSize bert_size(const Sizes& sizes) {
  const int64_t h = sizes.at("hidden_size");
  const int64_t f = sizes.at("intermediate_size");
  const int64_t positions = sizes.at("max_position_embeddings");
  const int64_t embedding =
      (sizes.at("vocab_size") + positions + sizes.at("type_vocab_size", 2)) * h + 2 * h;
  const int64_t layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h;
  const int64_t pooler = h * h + h;
  const int64_t ids = 2 * positions * static_cast<int64_t>(sizeof(int64_t));
  return size_of(embedding, layer, sizes.at("num_hidden_layers"), pooler, ids,
                 embedding * kFp32 + ids);
}

ModelSize llama_size(const Sizes& sizes) {
  const int64_t h = sizes.at("hidden_size");
  const int64_t heads = sizes.at("num_attention_heads");
  const int64_t head = sizes.at("head_dim", h / std::max<int64_t>(heads, 1));
  const int64_t groups = sizes.at("num_key_value_heads", heads);
  const int64_t words = sizes.at("vocab_size") * h;
  const int64_t layer =
      2 * h * heads * head + 2 * h * groups * head + 3 * h * sizes.at("intermediate_size") + 2 * h;
  const int64_t frequencies = 2 * (head / 2) * kFp32;
  return size_of(words, layer, sizes.at("num_hidden_layers"), h, frequencies, words * kFp32);
}

// Python's str.center.
std::string centred(const std::string& text, size_t width) {
  if (text.size() >= width) return text;
  const size_t space = width - text.size();
  const size_t left = space / 2 + (space & width & 1);
  return std::string(left, ' ') + text + std::string(space - left, ' ');
}

std::string repeated(const char* text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

std::string line(const std::vector<size_t>& widths, const char* left, const char* between,
                 const char* right) {
  std::string text = left;
  for (size_t column = 0; column < widths.size(); ++column) {
    text += repeated("─", widths[column]) + (column + 1 < widths.size() ? between : right);
  }
  return text + "\n";
}

}  // namespace

ModelSize model_size_of(const json& config, const std::string& source) {
  const std::string type = config.is_object() ? config.value("model_type", "") : "";
  const Sizes sizes(config, source);
  if (type == "gpt2") return gpt2_size(sizes);
  if (type == "bert" || type == "megatron-bert") return bert_size(sizes);
  if (type == "llama" || type == "mistral") return llama_size(sizes);
  throw ConfigError(fmt::format(
      "{}: model_type \"{}\" is not known; use gpt2, bert, megatron-bert, llama or mistral, or "
      "megatron plan with the flags of the model",
      source, type));
}

std::string memory_table(const std::string& name, const ModelSize& size,
                         std::span<const std::string> dtypes) {
  std::vector<std::vector<std::string>> rows = {
      {"dtype", "Largest Layer", "Total Size", "Training using Adam"}};
  for (const std::string& dtype : dtypes) {
    const int divisor = dtype == "float32"   ? 1
                        : dtype == "float16" ? 2
                        : dtype == "int8"    ? 4
                        : dtype == "int4"    ? 8
                                             : 0;
    if (divisor == 0) {
      throw ConfigError(
          fmt::format("--dtypes {} is not known; use float32, float16, int8, int4", dtype));
    }
    const auto total = static_cast<double>(size.total_bytes);
    // fp32 weights, gradients and two moments; with float16 half of these at the largest moment.
    const std::string training = divisor <= 2 ? bytes_text(4 * total / divisor) : "N/A";
    rows.push_back({dtype, bytes_text(static_cast<double>(size.largest_layer_bytes) / divisor),
                    bytes_text(total / divisor), training});
  }
  return boxed_table(fmt::format("Memory Usage for loading `{}`", name), rows);
}

std::string bytes_text(double bytes) {
  for (const char* const unit : {"bytes", "KB", "MB", "GB", "TB"}) {
    if (bytes < 1024) return fmt::format("{} {}", python_repr(std::round(bytes * 100) / 100), unit);
    bytes /= 1024;
  }
  return fmt::format("{} PB", python_repr(std::round(bytes * 100) / 100));
}

std::string boxed_table(const std::string& title,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  size_t total = widths.size() - 1;
  for (size_t column = 0; column < widths.size(); ++column) {
    for (const auto& row : rows) widths[column] = std::max(widths[column], row[column].size());
    total += widths[column];
  }
  if (title.size() + 2 > total) {  // the first column takes what the title needs
    widths[0] += title.size() + 2 - total;
    total = title.size() + 2;
  }
  std::string text = "┌" + repeated("─", total) + "┐\n│" + centred(title, total) + "│\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < 2) text += line(widths, "├", i == 0 ? "┬" : "┼", "┤");
    for (size_t column = 0; column < widths.size(); ++column) {
      text += "│" + centred(rows[i][column], widths[column]);
    }
    text += "│\n";
  }
  return text + line(widths, "└", "┴", "┘");
}

}  // namespace megatron::frontends
