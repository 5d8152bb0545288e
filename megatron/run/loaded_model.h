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

// Which model to load, and where.
struct ModelChoice {
  std::string load;       // directory of a checkpoint or of a Hugging Face model
  int64_t ckpt_step = 0;  // iteration to load; 0: the latest
  // Of a checkpoint that stores no settings: its tensors do not show them. 0: unknown.
  int64_t num_attention_heads = 0;
  TokenizerConfig tokenizer = {};  // empty: the model's own
  int64_t num_threads = 0;         // of CPU kernels; 0: all that this process may use
  DeviceChoice device = DeviceChoice::kAuto;
  ParallelConfig parallel = {};  // layout of this process group; that of the training is no matter
  InferenceWeights weights = InferenceWeights::kModel;
  KvCacheType kv_cache = KvCacheType::kModel;
  // Of a Retro, in place of the checkpoint's: empty, or 0 for the number, takes that. Commands that
  // have no neighbours leave the gate closed.
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
  int64_t vocab_size = 0;  // on rank 0: ids that mean something; the rest is padding
  // Of a BERT with a classification head, in place of the heads for words; else empty.
  std::vector<std::string> class_names = {};
  bool has_marks = false;  // of such a BERT: each class is right or wrong by itself
  // On rank 0, of a GPT and of a T5's decoder: each of these tokens ends a text. Those that the
  // model's files name (eos_token_id), or else the tokenizer's; empty if neither is known.
  std::vector<int32_t> end_tokens = {};
  // On rank 0, of a T5: the token with which its decoder begins, if it is known.
  std::optional<int32_t> decoder_start = {};

  // Throws ConfigError saying which flags give a tokenizer if there is none.
  const Tokenizer& required_tokenizer() const;
  // Throws ConfigError unless it is known.
  int32_t required_decoder_start() const;
  // A GPT or a T5 that continues texts. REQUIRES: it is one of them.
  InferenceModel inference() const;
  // REQUIRES: it is a BERT.
  BertInference bert_inference() const;
};

// The kinds of models that a command takes.
using TakesKind = bool (*)(ModelKind);
constexpr bool any_kind(ModelKind) { return true; }

// Loads the weights of a checkpoint (its architecture and tokenizer are those of the run that saved
// it) or of a Hugging Face directory (tokenizer: its vocab.json and merges.txt). A tokenizer of the
// choice comes before both. Every rank of `world` calls it and loads its part, whatever layout
// saved the checkpoint. Throws ConfigError for a model of a kind that the command does not take.
LoadedModel load_model(const ModelChoice& choice, const comm::Group& world = {},
                       TakesKind takes = is_decoder_only);

}  // namespace megatron
