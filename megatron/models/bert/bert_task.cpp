#include "megatron/models/bert/bert_task.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/masked_datasets.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/training/flops.h"
#include "megatron/training/loss_sums.h"

namespace megatron {
namespace {

// [CLS], two [SEP] and three tokens.
constexpr int64_t kMinBertSeqLength = 6;

// Places in a Microbatch.
struct BertPart {
  enum Index : size_t {
    kTokens,
    kTokenOrder,
    kTypes,
    kTypeOrder,
    kPaddingMask,
    kLabels,
    kLossMask,
    kIsRandom,
    kLossDivisor,
    kLossWeight,
    kNumParts
  };
};

std::shared_ptr<const MaskingVocabulary> bert_vocabulary_of(const Tokenizer& tokenizer) {
  auto vocabulary = std::make_shared<MaskingVocabulary>();
  vocabulary->size = tokenizer.vocab_size();
  vocabulary->cls = tokenizer.required_id(SpecialToken::kCls);
  vocabulary->sep = tokenizer.required_id(SpecialToken::kSep);
  vocabulary->mask = tokenizer.required_id(SpecialToken::kMask);
  vocabulary->pad = tokenizer.required_id(SpecialToken::kPad);
  vocabulary->continues_word = continuation_pieces(tokenizer);
  return vocabulary;
}

// What a config asks for that this model has not, a sentence each.
std::vector<std::string> bert_problems(const RunConfig& config) {
  std::vector<std::string> problems;
  const TransformerConfig& model = config.transformer;
  if (config.parallel.context_parallel_size > 1) {
    problems.push_back(fmt::format(
        "--context-parallel-size {} is not available for BERT; remove it, and divide the model by "
        "--tensor-model-parallel-size or --pipeline-model-parallel-size",
        config.parallel.context_parallel_size));
  }
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) {
    problems.emplace_back("BERT has learned positions only; remove --position-embedding-type");
  }
  if (model.untie_embeddings_and_output_weights) {
    problems.emplace_back(
        "--untie-embeddings-and-output-weights is not available for BERT; remove it");
  }
  if (model.embed_layernorm) {
    problems.emplace_back("--embed-layernorm is not available for BERT; remove it");
  }
  if (model.seq_length < kMinBertSeqLength) {
    problems.push_back(fmt::format("--seq-length {} has no room for two sentences; use {} or more",
                                   model.seq_length, kMinBertSeqLength));
  }
  if (config.training.seed <= 0) {
    problems.push_back(fmt::format("--seed {} must be positive: it orders the sentences of BERT",
                                   config.training.seed));
  }
  return problems;
}

}  // namespace

BertTask::BertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config), tokenizer_(std::move(tokenizer)) {
  std::vector<std::string> problems = bert_problems(config);
  if (tokenizer_ != nullptr && config.data.mock_data) {
    problems.emplace_back("--mock-data has no sentences for BERT; give --data-path");
  }
  if (!problems.empty()) throw ConfigError(problems);
  if (tokenizer_ != nullptr) vocabulary_ = bert_vocabulary_of(*tokenizer_);
}

std::vector<const Module*> BertTask::build_model(const ModelSite& site) {
  parallel_ = &site.parallel;
  random_ = &site.random;
  std::vector<const Module*> chunks;
  for (const ModelChunk& chunk : model_chunks(config_.parallel, config_.transformer.num_layers,
                                              site.parallel.pipeline.rank())) {
    models_.push_back(std::make_unique<const BertModel>(config_.transformer, chunk,
                                                        site.parallel.tensor, site.stream));
    chunks.push_back(models_.back().get());
    positions_.push_back(prepared_ids(default_position_ids(config_.training.micro_batch_size,
                                                           config_.transformer.seq_length),
                                      config_.transformer.max_position_embeddings, "position id")
                             .to(site.stream));
  }
  sample_weights_ =
      full({config_.training.micro_batch_size, 1}, 1.0f, DType::kFloat32, site.stream);
  return chunks;
}

std::vector<ChunkBoundary> BertTask::boundaries() const {
  const TransformerConfig& c = config_.transformer;
  const int64_t slices = parallel_->tensor.sequence_parallel ? parallel_->tensor.size() : 1;
  const Boundary hidden = {
      {.shape = {c.seq_length / slices, config_.training.micro_batch_size, c.hidden_size},
       .dtype = c.fp32_residual_connection ? DType::kFloat32 : c.params_dtype}};
  std::vector<ChunkBoundary> boundaries;
  for (const std::unique_ptr<const BertModel>& model : models_) {
    boundaries.push_back({.in = model->chunk().has_embedding ? Boundary{} : hidden,
                          .out = model->chunk().has_head ? Boundary{} : hidden});
  }
  return boundaries;
}

void BertTask::open_data(const Progress& progress) {
  BertDataset::Settings settings;
  settings.masking.probability = config_.data.mask_prob;
  settings.short_seq_prob = config_.data.short_seq_prob;
  settings.has_binary_head = config_.transformer.bert_binary_head;
  settings.vocabulary = vocabulary_;
  loaders_.open(
      config_, *parallel_, model_name(), progress,
      std::vector<bool>(models_.size(), true),  // every chunk needs the padding mask
      [&](const SampleCounts& sizes) {
        return build_split_datasets(config_.data, sizes, config_.transformer.seq_length,
                                    config_.training.seed, *tokenizer_,
                                    bert_dataset_maker(settings));
      },
      [this](const SampleDataset& dataset, const SampleGroup& group, Split split, int64_t chunk) {
        return microbatch(read(dataset, group), chunk, split == Split::kTrain);
      });
}

BertTask::Samples BertTask::read(const SampleDataset& dataset, const SampleGroup& group) const {
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t s = config_.transformer.seq_length;
  const Shape shape = {b, s};
  Samples samples = {.tokens = Tensor(shape, DType::kInt64, Stream{}),
                     .types = Tensor(shape, DType::kInt64, Stream{}),
                     .padding_mask = Tensor(shape, DType::kBool, Stream{}),
                     .labels = Tensor(shape, DType::kInt64, Stream{}),
                     .loss_mask = Tensor(shape, DType::kFloat32, Stream{}),
                     .is_random = Tensor({b}, DType::kInt64, Stream{})};
  std::vector<int64_t> run(static_cast<size_t>(dataset.sample_size()));
  for (size_t row = 0; row < group.indices.size(); ++row) {
    dataset.read(group.indices[row], run);
    const BertSample sample(run);
    const size_t first = row * static_cast<size_t>(s);
    for (size_t i = 0; i < static_cast<size_t>(s); ++i) {
      samples.tokens.span<int64_t>()[first + i] = sample.text[i];
      samples.types.span<int64_t>()[first + i] = sample.types[i];
      samples.labels.span<int64_t>()[first + i] = sample.labels[i];
      samples.padding_mask.span<bool>()[first + i] = sample.padding_mask[i] == 0;
      samples.loss_mask.span<float>()[first + i] = static_cast<float>(sample.loss_mask[i]);
    }
    samples.is_random.span<int64_t>()[row] = sample.is_random;
  }
  return samples;
}

Microbatch BertTask::microbatch(const Samples& samples, int64_t chunk, bool has_gradient) const {
  const TransformerConfig& config = config_.transformer;
  const ModelChunk& place = models_[static_cast<size_t>(chunk)]->chunk();
  Microbatch made(BertPart::kNumParts);
  made[BertPart::kPaddingMask] = samples.padding_mask;
  const auto add_ids = [&](BertPart::Index ids, BertPart::Index order, const Tensor& from,
                           int64_t rows, const char* what) {
    const RowIds checked = prepared_ids(from, rows, what);
    made[ids] = checked.ids;
    if (has_gradient) made[order] = checked.order;
  };
  if (place.has_embedding) {
    add_ids(BertPart::kTokens, BertPart::kTokenOrder, samples.tokens, config.padded_vocab_size,
            "token id");
    if (config.tokentypes() > 0) {
      add_ids(BertPart::kTypes, BertPart::kTypeOrder, samples.types, config.tokentypes(),
              "token type");
    }
  }
  if (place.has_head) {
    expect_labels(samples.labels, config.counted_vocab_size());
    made[BertPart::kLabels] = samples.labels;
    made[BertPart::kLossMask] = samples.loss_mask;
    made[BertPart::kIsRandom] = samples.is_random;
    made[BertPart::kLossDivisor] = samples.loss_divisor;
    if (config_.training.calculate_per_token_loss && !samples.loss_divisor.defined()) {
      const WeighedTokens counted = weighed_tokens(samples.loss_mask);
      made[BertPart::kLossDivisor] = counted.divisor;
      made[BertPart::kLossWeight] = counted.weight;
    }
  }
  return made;
}

MicrobatchOutput BertTask::forward_step(Split, int64_t chunk, const Microbatch& batch,
                                        std::span<const Variable> activations) {
  const BertModel& model = *models_[static_cast<size_t>(chunk)];
  const BertInput input = {.tokens = {batch[BertPart::kTokens], batch[BertPart::kTokenOrder]},
                           .position_ids = positions_[static_cast<size_t>(chunk)],
                           .token_types = {batch[BertPart::kTypes], batch[BertPart::kTypeOrder]},
                           .padding_mask = batch[BertPart::kPaddingMask]};
  const Variable hidden =
      model.forward(input, activations.empty() ? Variable() : activations[0], *random_);
  if (!model.chunk().has_head) return {.activations = {hidden}};
  const BertLosses losses =
      bert_losses(model, hidden,
                  {batch[BertPart::kLabels], batch[BertPart::kLossMask], batch[BertPart::kIsRandom],
                   sample_weights_, loss_seed_, batch[BertPart::kLossDivisor]});
  MicrobatchOutput output = {.losses = {losses.lm},
                             .logged = {{"lm loss", losses.lm.data()}},
                             .weight = batch[BertPart::kLossWeight]};
  if (losses.sop.defined()) {
    output.losses.push_back(losses.sop);
    output.logged.emplace_back("sop loss", losses.sop.data());
  }
  return output;
}

double BertTask::flops(int64_t batch_size) const {
  return standard_flops(config_.transformer, batch_size);
}

void BertTask::close() {
  loaders_.close();
  models_.clear();
  positions_.clear();
  sample_weights_ = {};
}

std::map<std::string, ArgMap> BertTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron
