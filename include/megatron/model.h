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
#include "megatron/transformer/model_kind.h"

namespace megatron {
struct LoadedModel;
}

namespace megatron::api {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 1.0;
  int64_t top_k = 0;   // 1: the most probable token; 0: any
  double top_p = 0.0;  // the most probable tokens with that sum of probabilities; 0: any
  uint64_t seed = 1234;
  std::vector<int32_t> stop_tokens = {};  // drawing one ends the text; it is kept
};

struct ModelOptions {
  int64_t iteration = 0;          // of a directory of checkpoints; 0: the latest
  std::string device = "auto";    // or "cpu", "cuda"
  int64_t num_threads = 0;        // of CPU kernels; 0: all that this process may use
  std::string weights = "model";  // rounded to "fp8" or "int8" for inference
  int64_t tensor_parallel_size = 1;
  int64_t pipeline_parallel_size = 1;
};

enum class ModelFormat { kNative, kHuggingFace };

// A model from a checkpoint or a Hugging Face directory. A GPT continues texts; every kind has its
// weights here.
class Model {
 public:
  // Every rank of `world` loads its part, whatever layout saved the checkpoint, and calls each
  // function alike; all get the same results. Throws ConfigError, IoError, FormatError.
  explicit Model(const std::string& directory, const World& world = {});
  Model(const std::string& directory, const ModelOptions& options, const World& world = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  // GPT, BERT or T5.
  ModelKind kind() const;
  const std::string& directory() const;  // as given, without a final slash
  int64_t vocab_size() const;            // ids that mean something; further ones are padding
  int64_t max_positions() const;         // tokens of a text

  // This rank's shards of the parameters, without copies.
  std::vector<NamedTensor> parameters() const;

  // Writes the weights as they are now, and the tokenizer's files, as a folder of a Hugging Face
  // model or as a checkpoint. Throws Unsupported if other ranks have a part of the model.
  void save(const std::string& directory, ModelFormat format = ModelFormat::kHuggingFace) const;

  // The logits [s, b, v] of b texts of s ids each, in the model's dtype and on its device. Keeps
  // what backward() needs. Throws Unsupported if other ranks have a part of the model, or if it is
  // no GPT.
  //   ids  b texts, one after the other
  Tensor forward(std::span<const int64_t> ids, int64_t b);
  // Adds the gradients of the weights, from that of the logits of the last forward(), in their
  // shape and dtype. Throws Error without a forward().
  void backward(const Tensor& gradient);
  // The gradients so far, by the names of the parameters that have one; without copies.
  std::vector<NamedTensor> gradients() const;
  void clear_gradients();

  // The logits [n, v] of the tokens after each of n ids, fp32 in host memory.
  Tensor logits(std::span<const int32_t> ids) const;

  // Continues every prompt: the ids of the prompt, then those that were drawn. A text depends on
  // the seed, its number and its own ids alone.
  std::vector<std::vector<int32_t>> generate(std::span<const std::vector<int32_t>> prompts,
                                             const GenerateOptions& options) const;

  // log p(ids[i] | ids before) of ids 1 .. n - 1.
  std::vector<double> log_probabilities(std::span<const int32_t> ids) const;

  // With the model's tokenizer, on rank 0. Throws ConfigError if the directory has none.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> ids) const;
  std::vector<int32_t> end_tokens() const;  // each of them ends a text

  // The model behind the interface (internals.h).
  const LoadedModel& loaded() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::api
