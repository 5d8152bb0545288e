#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

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

// Bytes of weights, gradients and Adam's state on each of N data-parallel ranks in mixed precision,
// for the stages 0 to 3 of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, fig. 1).
std::string zero_table(int64_t parameters, int64_t data_parallel_size);

}  // namespace megatron::frontends
