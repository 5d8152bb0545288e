#include "megatron/models/t5/t5_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/masked_datasets.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/training/flops.h"
#include "megatron/training/loss_sums.h"

namespace megatron {
namespace {

// Megatron's sequences of the encoder keep two places free.
constexpr int64_t kMinT5SeqLength = 4;

// Places in a Microbatch.
struct T5Part {
  enum Index : size_t {
    kEncoderTokens,
    kEncoderOrder,
    kDecoderTokens,
    kDecoderOrder,
    kEncoderPadding,
    kLabels,
    kLossMask,
    kLossDivisor,
    kLossWeight,
    kNumParts
  };
};

std::shared_ptr<const MaskingVocabulary> t5_vocabulary_of(const Tokenizer& tokenizer) {
  constexpr int32_t kNone = -1;  // no token is equal to it
  auto vocabulary = std::make_shared<MaskingVocabulary>();
  vocabulary->size = tokenizer.vocab_size();
  vocabulary->cls = tokenizer.special_id(SpecialToken::kCls).value_or(kNone);
  vocabulary->sep = tokenizer.special_id(SpecialToken::kSep).value_or(kNone);
  vocabulary->mask = tokenizer.special_id(SpecialToken::kMask).value_or(kNone);
  const int32_t pad = tokenizer.required_id(SpecialToken::kPad);
  vocabulary->pad = pad;
  // The published T5 models begin to decode with the padding.
  vocabulary->bos = tokenizer.special_id(SpecialToken::kBos).value_or(pad);
  vocabulary->eos = tokenizer.required_id(SpecialToken::kEos);
  for (const int32_t id : tokenizer.required_sentinel_ids(1)) vocabulary->sentinels.push_back(id);
  vocabulary->continues_word = continuation_pieces(tokenizer);
  return vocabulary;
}

// What a config asks for that this model has not, a sentence each.
std::vector<std::string> t5_problems(const RunConfig& config) {
  const TransformerConfig& model = config.transformer;
  std::vector<std::string> problems = t5_pipeline_problems(config.parallel, model);
  if (config.parallel.context_parallel_size > 1) {
    problems.push_back(fmt::format(
        "--context-parallel-size {} is not available for T5; remove it, and divide the model by "
        "--tensor-model-parallel-size or --pipeline-model-parallel-size",
        config.parallel.context_parallel_size));
  }
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute &&
      model.position_embedding_type != PositionEmbedding::kRelative) {
    problems.emplace_back(
        "T5 has learned or relative positions; use --position-embedding-type learned_absolute or "
        "relative");
  }
  if (model.embed_layernorm) {
    problems.emplace_back("--embed-layernorm is not available for T5; remove it");
  }
  if (model.group_query_attention) {
    problems.emplace_back("--group-query-attention is not available for T5; remove it");
  }
  if (model.parallel_residual) {
    problems.emplace_back("--parallel-residual is not available for T5; remove it");
  }
  if (model.seq_length < kMinT5SeqLength) {
    problems.push_back(fmt::format("--encoder-seq-length {} has no room for text; use {} or more",
                                   model.seq_length, kMinT5SeqLength));
  }
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  if (config.parallel.sequence_parallel && model.decoder_seq_length % tp != 0) {
    problems.push_back(
        fmt::format("--decoder-seq-length {} must be a multiple of --tensor-model-parallel-size {} "
                    "with --sequence-parallel",
                    model.decoder_seq_length, tp));
  }
  if (config.training.seed <= 0) {
    problems.push_back(fmt::format("--seed {} must be positive: it orders the sentences of T5",
                                   config.training.seed));
  }
  return problems;
}

}  // namespace

T5Task::T5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config), tokenizer_(std::move(tokenizer)) {
  std::vector<std::string> problems = t5_problems(config);
  if (tokenizer_ != nullptr && config.data.mock_data) {
    problems.emplace_back("--mock-data has no sentences for T5; give --data-path");
  }
  if (!problems.empty()) throw ConfigError(problems);
  if (tokenizer_ != nullptr) vocabulary_ = t5_vocabulary_of(*tokenizer_);
}

std::vector<const Module*> T5Task::build_model(const ModelSite& site) {
  parallel_ = &site.parallel;
  random_ = &site.random;
  const TransformerConfig& c = config_.transformer;
  model_ = std::make_unique<const T5Model>(
      c, t5_chunk(config_.parallel, c, site.parallel.pipeline.rank()), site.parallel.tensor,
      site.stream);
  if (c.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    encoder_positions_ = positions(c.seq_length);
    decoder_positions_ = positions(c.decoder_seq_length);
  }
  return {model_.get()};
}

RowIds T5Task::positions(int64_t length) const {
  return prepared_ids(default_position_ids(config_.training.micro_batch_size, length),
                      config_.transformer.max_position_embeddings, "position id")
      .to(model_->stream());
}

std::vector<ChunkBoundary> T5Task::boundaries() const {
  const TransformerConfig& c = config_.transformer;
  const int64_t slices = parallel_->tensor.sequence_parallel ? parallel_->tensor.size() : 1;
  const auto states = [&](int64_t length, DType dtype) -> BoundaryTensor {
    return {.shape = {length / slices, config_.training.micro_batch_size, c.hidden_size},
            .dtype = dtype};
  };
  const DType residual = c.fp32_residual_connection ? DType::kFloat32 : c.params_dtype;
  const Boundary in_encoder = {states(c.seq_length, residual)};
  const Boundary between = {states(c.seq_length, c.params_dtype)};
  const Boundary in_decoder = {states(c.seq_length, c.params_dtype),
                               states(c.decoder_seq_length, residual)};
  const T5Chunk& chunk = model_->chunk();
  ChunkBoundary boundary;
  if (!chunk.embeds_encoder) {
    boundary.in = chunk.has_encoder() ? in_encoder : chunk.embeds_decoder ? between : in_decoder;
  }
  if (!chunk.has_head) {
    boundary.out = chunk.has_decoder() ? in_decoder : chunk.encoder.has_end ? between : in_encoder;
  }
  return {boundary};
}

void T5Task::open_data(const Progress& progress) {
  T5Dataset::Settings settings;
  settings.masking.probability = config_.data.mask_prob;
  settings.short_seq_prob = config_.data.short_seq_prob;
  settings.decoder_seq_length = config_.transformer.decoder_seq_length;
  settings.vocabulary = vocabulary_;
  loaders_.open(
      config_, *parallel_, model_name(), progress, {true},  // every stage needs the padding mask
      [&](const SampleCounts& sizes) {
        return build_split_datasets(config_.data, sizes, config_.transformer.seq_length,
                                    config_.training.seed, *tokenizer_, t5_dataset_maker(settings));
      },
      [this](const SampleDataset& dataset, const SampleGroup& group, Split split, int64_t) {
        return microbatch(read(dataset, group), split == Split::kTrain);
      });
}

T5Task::Samples T5Task::read(const SampleDataset& dataset, const SampleGroup& group) const {
  const TransformerConfig& c = config_.transformer;
  const auto b = static_cast<int64_t>(group.indices.size());
  const Shape of_encoder = {b, c.seq_length};
  const Shape of_decoder = {b, c.decoder_seq_length};
  Samples samples = {.encoder_tokens = Tensor(of_encoder, DType::kInt64, Stream{}),
                     .encoder_padding_mask = Tensor(of_encoder, DType::kBool, Stream{}),
                     .decoder_tokens = Tensor(of_decoder, DType::kInt64, Stream{}),
                     .labels = Tensor(of_decoder, DType::kInt64, Stream{}),
                     .loss_mask = Tensor(of_decoder, DType::kFloat32, Stream{})};
  std::vector<int64_t> run(static_cast<size_t>(dataset.sample_size()));
  for (size_t row = 0; row < group.indices.size(); ++row) {
    dataset.read(group.indices[row], run);
    const T5Sample sample(run, c.seq_length);
    const auto copy_row = [row](std::span<const int64_t> from, auto to) {
      std::copy(from.begin(), from.end(), to.begin() + static_cast<int64_t>(row * from.size()));
    };
    copy_row(sample.encoder, samples.encoder_tokens.span<int64_t>());
    copy_row(sample.decoder, samples.decoder_tokens.span<int64_t>());
    copy_row(sample.labels, samples.labels.span<int64_t>());
    for (size_t i = 0; i < sample.loss_mask.size(); ++i) {
      samples.loss_mask.span<float>()[row * sample.loss_mask.size() + i] =
          static_cast<float>(sample.loss_mask[i]);
    }
  }
  // The decoder needs no mask: it is causal, and only padding follows its last token.
  const auto tokens = std::as_const(samples.encoder_tokens).span<int64_t>();
  std::transform(tokens.begin(), tokens.end(), samples.encoder_padding_mask.span<bool>().begin(),
                 [pad = vocabulary_->pad](int64_t id) { return id == pad; });
  return samples;
}

Microbatch T5Task::microbatch(const Samples& samples, bool has_gradient) const {
  const int64_t rows = config_.transformer.padded_vocab_size;
  Microbatch made(T5Part::kNumParts);
  made[T5Part::kEncoderPadding] = samples.encoder_padding_mask;
  const T5Chunk& chunk = model_->chunk();
  const auto put_ids = [&](const Tensor& tokens, T5Part::Index ids, T5Part::Index order) {
    const RowIds prepared = prepared_ids(tokens, rows, "token id");
    made[ids] = prepared.ids;
    if (has_gradient) made[order] = prepared.order;
  };
  if (chunk.embeds_encoder)
    put_ids(samples.encoder_tokens, T5Part::kEncoderTokens, T5Part::kEncoderOrder);
  if (chunk.embeds_decoder)
    put_ids(samples.decoder_tokens, T5Part::kDecoderTokens, T5Part::kDecoderOrder);
  if (chunk.has_head) {
    expect_labels(samples.labels, rows);
    made[T5Part::kLabels] = samples.labels;
    made[T5Part::kLossMask] = samples.loss_mask;
    made[T5Part::kLossDivisor] = samples.loss_divisor;
    if (config_.training.calculate_per_token_loss && !samples.loss_divisor.defined()) {
      const WeighedTokens counted = weighed_tokens(samples.loss_mask);
      made[T5Part::kLossDivisor] = counted.divisor;
      made[T5Part::kLossWeight] = counted.weight;
    }
  }
  return made;
}

MicrobatchOutput T5Task::forward_step(Split, int64_t, const Microbatch& batch,
                                      std::span<const Variable> activations) {
  const T5Input input = {
      .encoder_tokens = {batch[T5Part::kEncoderTokens], batch[T5Part::kEncoderOrder]},
      .encoder_position_ids = encoder_positions_,
      .decoder_tokens = {batch[T5Part::kDecoderTokens], batch[T5Part::kDecoderOrder]},
      .decoder_position_ids = decoder_positions_,
      .encoder_padding_mask = batch[T5Part::kEncoderPadding]};
  T5States states;
  if (!activations.empty()) states.encoder = activations[0];
  if (activations.size() > 1) states.decoder = activations[1];
  const T5States after = model_->forward(input, states, *random_);
  if (!model_->chunk().has_head) {
    if (!after.decoder.defined()) return {.activations = {after.encoder}};
    return {.activations = {after.encoder, after.decoder}};
  }
  const Variable loss = t5_loss(*model_, after.decoder, batch[T5Part::kLabels],
                                batch[T5Part::kLossMask], loss_seed_, batch[T5Part::kLossDivisor]);
  return {
      .losses = {loss}, .logged = {{"lm loss", loss.data()}}, .weight = batch[T5Part::kLossWeight]};
}

int64_t T5Task::tokens_per_sample() const {
  return config_.transformer.seq_length + config_.transformer.decoder_seq_length;
}

double T5Task::flops(int64_t batch_size) const {
  return encoder_decoder_flops(config_.transformer, batch_size);
}

void T5Task::close() {
  loaders_.close();
  model_.reset();
  encoder_positions_ = decoder_positions_ = {};
}

std::map<std::string, ArgMap> T5Task::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron
