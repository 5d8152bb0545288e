#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace megatron::frontends {

// The size of a model of transformers without its head, in fp32.
struct ModelSize {
  int64_t parameters = 0;
  int64_t total_bytes = 0;          // with buffers
  int64_t largest_layer_bytes = 0;  // the largest part that is never divided
};

// From a config.json of GPT-2, BERT or Llama. Throws ConfigError.
ModelSize model_size_of(const nlohmann::json& config, const std::string& source);

// The table of `accelerate estimate-memory`. The types are float32, float16, int8 and int4; throws
// ConfigError for another one.
std::string memory_table(const std::string& name, const ModelSize& size,
                         std::span<const std::string> dtypes);

// A table in such a box. The first of `rows` are the names of the columns; all have as many.
std::string boxed_table(const std::string& title,
                        const std::vector<std::vector<std::string>>& rows);

// "474.7 MB", as Python rounds.
std::string bytes_text(double bytes);

}  // namespace megatron::frontends
