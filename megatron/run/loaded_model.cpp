#include "megatron/run/loaded_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/checkpoint/chunks.h"
#include "megatron/comm/share_threads.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/deepspeed.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/model_chunks.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/run/collectively.h"
#include "megatron/run/device_choice.h"
#include "megatron/tokenizers/tokenizer_files.h"
#include "megatron/transformer/expert_config.h"

namespace megatron {
namespace {

bool names_tokenizer(const TokenizerConfig& config) {
  return !config.vocab_file.empty() || !config.tokenizer_model.empty() || config.vocab_size > 0;
}

TransformerConfig for_inference(TransformerConfig config) {
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  config.retro.encoder_hidden_dropout = 0;
  config.retro.encoder_attention_dropout = 0;
  return config;
}

// The layout of the ranks that load. Throws ConfigError if the model does not fit it.
ParallelConfig laid_out(const ModelChoice& choice, const TransformerConfig& transformer,
                        int64_t num_ranks) {
  ParallelConfig config = choice.parallel;
  const int64_t tp = config.tensor_model_parallel_size;
  const int64_t pp = config.pipeline_model_parallel_size;
  config.world_size = num_ranks;
  if (config.context_parallel_size != 1) {
    throw ConfigError(
        fmt::format("--context-parallel-size {} is for training: sequences are not divided here; "
                    "remove it, and divide the model by --tensor-model-parallel-size or "
                    "--pipeline-model-parallel-size",
                    config.context_parallel_size));
  }
  const bool fits =
      tp * pp == num_ranks || (choice.has_replicas && tp * pp > 0 && num_ranks % (tp * pp) == 0);
  if (tp >= 1 && pp >= 1 && !fits) {
    throw ConfigError(
        fmt::format("tensor {} x pipeline {} are {} ranks, and there are {}; use megatron launch "
                    "--nproc-per-node {} with this command, or other sizes",
                    tp, pp, tp * pp, num_ranks, tp * pp));
  }
  // Replicas answer different texts, so that the ranks of an expert belong to one.
  const int64_t ep = config.expert_model_parallel_size;
  int64_t& etp = config.expert_tensor_parallel_size;
  if (etp == 0 && ep > 1 && tp % ep == 0) etp = tp / ep;
  std::vector<std::string> wrong = problems(config);
  if (wrong.empty() && tp % (ep * expert_tensor_size(config)) != 0) {
    wrong.push_back(fmt::format(
        "--expert-model-parallel-size {} x --expert-tensor-parallel-size {} must divide "
        "--tensor-model-parallel-size {}, whose ranks read the same texts; use such sizes",
        ep, expert_tensor_size(config), tp));
  }
  if (wrong.empty()) {
    for (std::string& problem : expert_layout_problems(transformer, config)) {
      wrong.push_back(std::move(problem));
    }
    for (std::string& problem : problems(transformer, tp)) wrong.push_back(std::move(problem));
    for (std::string& problem : layout_problems(transformer, config)) {
      wrong.push_back(std::move(problem));
    }
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  config.data_parallel_size = num_ranks / (tp * pp);
  return config;
}

std::unique_ptr<Tokenizer> opened(const TokenizerConfig& config, bool is_from_flags) {
  if (is_from_flags) return make_tokenizer(config);
  try {
    return make_tokenizer(config);
  } catch (const IoError& error) {
    throw IoError(fmt::format(
        "{}; the checkpoint names this file of its tokenizer: give its place with --vocab-file and "
        "--merge-file, or --tokenizer-model",
        error.what()));
  }
}

// Ids beyond the model's rows would be found late, when a text needs one of them.
void expect_ids_to_fit(const Tokenizer& tokenizer, int64_t rows) {
  if (tokenizer.vocab_size() <= rows) return;
  throw ConfigError(fmt::format(
      "the tokenizer has {} ids, the model {} rows; use the tokenizer the model was trained with",
      tokenizer.vocab_size(), rows));
}

}  // namespace

const Tokenizer& LoadedModel::required_tokenizer() const {
  if (tokenizer != nullptr) return *tokenizer;
  throw ConfigError(
      "text needs a tokenizer, and the model's folder has none (tokenizer.json, or vocab.json and "
      "merges.txt); give --tokenizer-type with --tokenizer-model or --vocab-file, or ids instead "
      "of "
      "text");
}

InferenceModel LoadedModel::inference() const {
  const auto with = [this](const auto& kind_of_model) {
    InferenceModel found(kind_of_model, parallel);
    found.kv_cache = kv_cache;
    return found;
  };
  if (const auto* t5 = dynamic_cast<const T5Model*>(model.get())) return with(*t5);
  if (const auto* bert = dynamic_cast<const BertModel*>(model.get())) return with(*bert);
  return with(dynamic_cast<const GptModel&>(*model));
}

BertInference LoadedModel::bert_inference() const {
  return {dynamic_cast<const BertModel&>(*model), parallel};
}

int32_t LoadedModel::required_decoder_start() const {
  if (decoder_start) return *decoder_start;
  throw ConfigError(
      "the token with which the decoder of this T5 begins is not known; give its tokenizer, which "
      "has [BOS] or [PAD], with --tokenizer-type and --vocab-file or --tokenizer-model");
}

namespace {

// Compares the combined hashes of all parts of each copy of the model, and of tensors that each
// tensor-parallel rank has whole.
void expect_hashes_of(const Module& model, const CheckpointContents& contents,
                      const ParallelContext& parallel) {
  CheckpointState parts;
  parts.model = chunks_to_save(model, [&](const ParameterInfo& info) {
    return parallel.is_first_along(info.shared_axes());
  });
  expect_stored_hashes(contents, parts, parallel.model);
  if (parallel.tensor.rank() == 0) return;
  parts.model = chunks_of(model);
  std::erase_if(parts.model, [](const CheckpointTensor& tensor) {
    return !(tensor.data.shape() == tensor.whole);
  });
  expect_stored_hashes(contents, parts, {});
}

// Fills this rank's part of a model with its weights.
void load_chunk(const Model& model, InferenceWeights weights, const ParallelContext& parallel,
                CheckpointContents contents) {
  CheckpointState state;
  state.model = chunks_of(model);
  if (model.tensor_parallel().size() > 1) {  // rows that only make it divide are not stored
    resize_vocabulary(contents, model.config().padded_vocab_size);
  }
  load_checkpoint(contents, state, {.optimizer = false, .is_part = !model.ends().is_whole()});
  state.model.clear();  // it shares the weights
  expect_hashes_of(model, contents, parallel);
  round_weights(model, weights, model.stream());
}

std::optional<int32_t> first_special(const Tokenizer* tokenizer,
                                     std::initializer_list<SpecialToken> tokens) {
  for (const SpecialToken token : tokens) {
    const auto id = tokenizer == nullptr ? std::nullopt : tokenizer->special_id(token);
    if (id) return id;
  }
  return std::nullopt;
}

// The end tokens, and the first token of a T5's decoder: from the model's files, or as in training
// with the tokenizer (models/t5/t5_task.h); the published T5s begin with padding. `settings` are
// those of the source.
void set_ends(LoadedModel& model, const ArgMap& settings) {
  const bool is_t5 = is_encoder_decoder(model.kind);
  for (const int64_t id : end_tokens_of(settings)) {
    const bool can_come = id >= 0 && id < model.vocab_size;
    if (can_come) model.end_tokens.push_back(static_cast<int32_t>(id));
  }
  if (model.end_tokens.empty()) {
    const auto end =
        first_special(model.tokenizer.get(), {is_t5 ? SpecialToken::kEos : SpecialToken::kEod});
    if (end) model.end_tokens = {*end};
  }
  if (!is_t5) return;
  const auto start = settings.find("decoder_start_token_id");
  const auto* id = start != settings.end() ? std::get_if<int64_t>(&start->second) : nullptr;
  model.decoder_start = id != nullptr ? std::optional(static_cast<int32_t>(*id))
                                      : first_special(model.tokenizer.get(),
                                                      {SpecialToken::kBos, SpecialToken::kPad});
}

void use_neighbors_of(const ModelChoice& choice, RetroConfig& retro) {
  if (!retro.add_retriever) return;
  if (choice.retro_num_neighbors > 0) retro.num_neighbors = choice.retro_num_neighbors;
  if (!choice.retro_attention_gate) return;
  if (retro.reads_neighbors() && *choice.retro_attention_gate == 0) {
    warn("this Retro reads no neighbours here: it computes as with --retro-attention-gate 0");
  }
  retro.attention_gate = *choice.retro_attention_gate;
}

void expect_usable(const CheckpointSource& source, TakesKind takes) {
  if (takes(source.kind())) return;
  std::vector<std::string_view> names;
  for (const ModelFamily& family : kModelFamilies) {
    if (takes(family.kind)) names.push_back(family.name);
  }
  throw ConfigError(fmt::format("--load {}: is a {}, and this command takes a {}",
                                source.directory().string(), name_of(source.kind()),
                                fmt::join(names, " or a ")));
}

}  // namespace

LoadedModel load_model(const ModelChoice& choice, const comm::Group& world, TakesKind takes) {
  if (choice.load.empty()) {
    throw ConfigError("--load is required: the directory of a checkpoint or Hugging Face model");
  }
  comm::use_threads(choice.num_threads);
  const CheckpointSource source =
      find_source(choice.load, choice.ckpt_step, true, LoadFormat::kAuto, Parts::kWeights);
  ArgMap fallback;
  if (choice.num_attention_heads > 0) fallback["num_attention_heads"] = choice.num_attention_heads;
  const CheckpointContents& contents = source.contents(fallback);
  collectively([&] { expect_usable(source, takes); });

  LoadedModel result;
  result.kind = source.kind();
  TransformerConfig config;
  TokenizerConfig tokenizer;
  if (source.hf() != nullptr) {
    config = source.hf()->transformer;
    result.vocab_size = source.hf()->vocab_size;
    result.class_names = source.hf()->class_names;
    result.has_marks = source.hf()->problem_type == kHfMarks;
    tokenizer = tokenizer_of_model(source.directory()).value_or(TokenizerConfig());
  } else {
    const TrainingArgs run = described_run(source.format(), contents);
    config = run.transformer;
    tokenizer = tokenizer_of_checkpoint(source.directory()).value_or(run.tokenizer);
    if constexpr (kHasDeepSpeed) {
      const auto of_model = hf_config_folder(source.directory());
      if (!names_tokenizer(tokenizer) && of_model) {
        tokenizer = tokenizer_of_model(*of_model).value_or(tokenizer);
      }
    }
  }
  if (names_tokenizer(choice.tokenizer)) {
    tokenizer = choice.tokenizer;
    if (tokenizer.tokenizer_type.empty()) tokenizer.tokenizer_type = "GPT2BPETokenizer";
  }
  if (names_tokenizer(tokenizer)) {
    on_first_rank(world, [&] {
      result.tokenizer = opened(tokenizer, names_tokenizer(choice.tokenizer));
      expect_ids_to_fit(*result.tokenizer,
                        result.vocab_size > 0 ? result.vocab_size : config.padded_vocab_size);
    });
  }
  if (result.vocab_size == 0) {
    result.vocab_size = result.tokenizer != nullptr
                            ? std::min(result.tokenizer->vocab_size(), config.counted_vocab_size())
                            : config.counted_vocab_size();
  }
  const ParallelConfig parallel =
      collectively([&] { return laid_out(choice, config, world.size()); });
  config.true_vocab_size = config.counted_vocab_size();  // rows are added to divide them
  const int64_t tp = parallel.tensor_model_parallel_size;
  config.padded_vocab_size = (config.padded_vocab_size + tp - 1) / tp * tp;
  warn_of_device(choice.device, world);
  if (!config.is_encoder_decoder() && parallel.pipeline_model_parallel_split_rank > 0) {
    warn(fmt::format("--pipeline-model-parallel-split-rank has no effect with a {}: it is for T5",
                     name_of(config.kind)));
  }
  use_neighbors_of(choice, config.retro);
  result.stream = std::make_unique<OwnedStream>(chosen_device(choice.device, world));
  collectively([&] {
    expect_device_for(choice.weights, result.stream->get());
    expect_device_for(choice.kv_cache, config, result.stream->get());
  });
  result.kv_cache = choice.kv_cache;
  result.parallel = make_parallel_context(world, parallel);
  config = for_inference(config);
  if (config.has_decoder()) set_ends(result, source.args());
  BertHeads heads;
  if (!result.class_names.empty()) {
    heads = {.classifier = "classification_head", .num_classes = std::ssize(result.class_names)};
  }
  result.model = std::move(
      make_model_chunks(config, parallel, result.parallel, result.stream->get(), heads).front());
  load_chunk(*result.model, choice.weights, result.parallel, contents);
  return result;
}

}  // namespace megatron
