#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/device/stream.h"
#include "megatron/inference/bert.h"
#include "megatron/inference/generate.h"
#include "megatron/models/model.h"
#include "megatron/parallel/config.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/config.h"

namespace megatron {

// The model to load, and its layout.
struct ModelChoice {
  std::string load;       // directory of a checkpoint or of a Hugging Face model
  int64_t ckpt_step = 0;  // iteration to load; 0: the latest
  // Attention heads of a checkpoint without settings: its tensors do not show them. 0: unknown.
  int64_t num_attention_heads = 0;
  TokenizerConfig tokenizer = {};  // empty: the model's own
  int64_t num_threads = 0;         // of CPU kernels; 0: all that this process may use
  DeviceChoice device = DeviceChoice::kAuto;
  ParallelConfig parallel =
      {};  // layout of this process group, independent of the layout of training
  InferenceWeights weights = InferenceWeights::kModel;
  KvCacheType kv_cache = KvCacheType::kModel;
  // Retro: replace the checkpoint's values; empty, or 0 for the number, keeps them. Commands
  // without neighbours leave the gate at 0.
  std::optional<double> retro_attention_gate = 0.0;
  int64_t retro_num_neighbors = 0;
  // Ranks beyond those of one model load further models; otherwise they are an error.
  bool has_replicas = false;
};

// A model that is ready to use, or this rank's part of it.
struct LoadedModel {
  std::unique_ptr<OwnedStream> stream;
  ModelKind kind = {};
  std::unique_ptr<const Model> model;
  ParallelContext parallel;
  KvCacheType kv_cache = KvCacheType::kModel;
  // On rank 0, which reads texts; null there if neither the choice nor the directory names one.
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t vocab_size = 0;  // on rank 0: ids without padding
  // Class names of a BERT with a classification head instead of the heads for words; else empty.
  std::vector<std::string> class_names = {};
  bool has_marks = false;  // of such a BERT: multi-label classification
  // On rank 0, for a GPT and a T5's decoder: end-of-text tokens, from the model's files
  // (eos_token_id) or else from the tokenizer; empty if neither is known.
  std::vector<int32_t> end_tokens = {};
  // On rank 0, for a T5: the first token of the decoder, if known.
  std::optional<int32_t> decoder_start = {};

  // Throws ConfigError saying which flags give a tokenizer if there is none.
  const Tokenizer& required_tokenizer() const;
  // Throws ConfigError unless it is known.
  int32_t required_decoder_start() const;
  // A GPT or a T5 that continues texts, or a BERT, which has embeddings.
  InferenceModel inference() const;
  // REQUIRES: it is a BERT.
  BertInference bert_inference() const;
};

// The kinds of models that a command takes.
using TakesKind = bool (*)(ModelKind);
constexpr bool any_kind(ModelKind) { return true; }

// Loads the weights of a checkpoint (its architecture and tokenizer are those of the run that saved
// it) or of a Hugging Face directory (tokenizer: its vocab.json and merges.txt). A tokenizer of the
// choice comes before both. Every rank of `world` calls it and loads its part, from a checkpoint of
// any layout. Throws ConfigError for a model of a kind that the command does not take.
LoadedModel load_model(const ModelChoice& choice, const comm::Group& world = {},
                       TakesKind takes = is_decoder_only);

}  // namespace megatron
