#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megatron/training/curriculum.h"

namespace megatron::frontends {

// fp16.* of a DeepSpeed configuration.
struct DeepSpeedFp16 {
  std::optional<bool> enabled;  // none: "auto"
  double loss_scale = 0;        // 0: dynamic
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  double min_loss_scale = 1;
};

// The supported settings of a DeepSpeed configuration.
struct DeepSpeedConfig {
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;
  std::optional<double> gradient_clipping = 0;  // 0: off; none: "auto"
  bool names_clipping = false;                  // gradient_clipping is in the file
  DeepSpeedFp16 fp16;
  std::optional<bool> bf16 = false;  // none: "auto"
  int64_t zero_stage = 0;
  bool offloads_optimizer = false;  // its state is in host memory
  bool loads_universal = false;     // --load is the universal checkpoint beside others
  CurriculumConfig curriculum;
  std::vector<std::string> without_effect;  // keys that only matter to DeepSpeed's engine
  std::vector<std::string> unknown;         // keys that DeepSpeed does not know, either
  std::vector<std::string> unavailable;     // what is asked for and missing here, a sentence each
};

// The meaning of "auto" for the batch sizes; 0: unknown.
struct AutoBatch {
  int64_t micro_batch_size = 0;
  int64_t global_batch_size = 0;
};

// Reads and completes a configuration for so many data-parallel ranks, by the rules of DeepSpeed
// 0.8 (the time of BigScience's fork) where versions differ. Throws ConfigError with every value
// that DeepSpeed refuses, a sentence each.
DeepSpeedConfig deepspeed_config_of(const nlohmann::json& file, const std::string& source,
                                    int64_t data_parallel_size, const AutoBatch& autos = {});

// The JSON of --deepspeed_config: of a file, or written in base64 itself. Throws IoError and
// FormatError.
nlohmann::json load_deepspeed_json(const std::string& path_or_text);

}  // namespace megatron::frontends
