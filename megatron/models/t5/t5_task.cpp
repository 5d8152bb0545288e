#include "megatron/models/t5/t5_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/masked_datasets.h"
#include "megatron/models/t5/t5_chunk.h"

namespace megatron {
namespace {

// Megatron's sequences of the encoder keep two places free.
constexpr int64_t kMinT5SeqLength = 4;

constexpr const char* kNoT5Sentences = "--mock-data has no sentences for T5; give --data-path";

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

}  // namespace

std::vector<std::string> t5_run_problems(const RunConfig& config) {
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

T5Task::T5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
               bool has_datasets)
    : ModelTask(config, tokenizer) {
  has_datasets = has_datasets && tokenizer != nullptr;
  std::vector<std::string> problems = t5_run_problems(config);
  if (has_datasets && config.data.mock_data) problems.emplace_back(kNoT5Sentences);
  if (!problems.empty()) throw ConfigError(problems);
  if (has_datasets) vocabulary_ = t5_vocabulary_of(*tokenizer);
}

SplitDatasets T5Task::open_datasets(const SampleCounts& sizes) const {
  if (vocabulary_ == nullptr) throw ConfigError(kNoT5Sentences);
  T5Dataset::Settings settings;
  settings.masking.probability = config().data.mask_prob;
  settings.short_seq_prob = config().data.short_seq_prob;
  settings.decoder_seq_length = config().transformer.decoder_seq_length;
  settings.vocabulary = vocabulary_;
  return build_split_datasets(config().data, sizes, config().transformer.seq_length,
                              config().training.seed, tokenizer(), t5_dataset_maker(settings));
}

TextMicrobatch T5Task::make_batch(const SampleDataset& dataset, const SampleGroup& group,
                                  Split split, int64_t chunk) const {
  const TransformerConfig& c = config().transformer;
  const auto b = static_cast<int64_t>(group.indices.size());
  const Shape of_encoder = {b, c.seq_length};
  const Shape of_decoder = {b, c.decoder_seq_length};
  Tensor tokens(of_encoder, DType::kInt64, Stream{});
  Tensor padding_mask(of_encoder, DType::kBool, Stream{});
  Tensor decoder_tokens(of_decoder, DType::kInt64, Stream{});
  TokenTargets targets = {.labels = Tensor(of_decoder, DType::kInt64, Stream{}),
                          .loss_mask = Tensor(of_decoder, DType::kFloat32, Stream{})};
  std::vector<int64_t> run(static_cast<size_t>(dataset.sample_size()));
  for (size_t row = 0; row < group.indices.size(); ++row) {
    dataset.read(group.indices[row], run);
    const T5Sample sample(run, c.seq_length);
    const auto copy_row = [row](std::span<const int64_t> from, auto to) {
      std::copy(from.begin(), from.end(), to.begin() + static_cast<int64_t>(row * from.size()));
    };
    copy_row(sample.encoder, tokens.span<int64_t>());
    copy_row(sample.decoder, decoder_tokens.span<int64_t>());
    copy_row(sample.labels, targets.labels.span<int64_t>());
    for (size_t i = 0; i < sample.loss_mask.size(); ++i) {
      targets.loss_mask.span<float>()[row * sample.loss_mask.size() + i] =
          static_cast<float>(sample.loss_mask[i]);
    }
  }
  // The decoder needs no mask: it is causal, and only padding follows its last token.
  std::ranges::transform(std::as_const(tokens).span<int64_t>(), padding_mask.span<bool>().begin(),
                         [pad = vocabulary_->pad](int64_t id) { return id == pad; });
  return part_of(
      {{.tokens = tokens, .padding_mask = padding_mask, .decoder_tokens = decoder_tokens}, targets},
      chunk, split);
}

}  // namespace megatron
