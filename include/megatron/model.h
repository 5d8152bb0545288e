#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/ranks.h"
#include "megatron/tensor.h"

namespace megatron::api {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 1.0;
  int64_t top_k = 0;   // 1: the most probable token; 0: any
  double top_p = 0.0;  // the most probable tokens with that sum of probabilities; 0: any
  uint64_t seed = 1234;
  std::vector<int32_t> stop_tokens = {};  // drawing one ends the text; it is kept
};

// A GPT for inference, from a checkpoint or a Hugging Face directory.
class Model {
 public:
  // Every rank of `world` loads its part, whatever layout saved the checkpoint, and calls each
  // function alike; all get the same results. Throws ConfigError, IoError, FormatError.
  explicit Model(const std::string& directory, const World& world = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  // This rank's shards of the parameters, without copies.
  std::vector<NamedTensor> parameters() const;

  // The logits [n, v] of the tokens after each of n ids, fp32 in host memory.
  Tensor logits(std::span<const int32_t> ids) const;

  // Continues every prompt: the ids of the prompt, then those that were drawn. A text depends on
  // the seed, its number and its own ids alone.
  std::vector<std::vector<int32_t>> generate(std::span<const std::vector<int32_t>> prompts,
                                             const GenerateOptions& options) const;

  // With the model's tokenizer, on rank 0. Throws ConfigError if the directory has none.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> ids) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::api
