#include "megatron/models/bert/bert_task.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/masked_datasets.h"
#include "megatron/models/bert/bert_model.h"

namespace megatron {
namespace {

// [CLS], two [SEP] and three tokens.
constexpr int64_t kMinBertSeqLength = 6;

constexpr const char* kNoBertSentences = "--mock-data has no sentences for BERT; give --data-path";

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

// Unsupported settings, a sentence each.
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

BertTask::BertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                   bool has_datasets)
    : ModelTask(config, tokenizer) {
  has_datasets = has_datasets && tokenizer != nullptr;
  std::vector<std::string> problems = bert_problems(config);
  if (has_datasets && config.data.mock_data) {
    problems.emplace_back(kNoBertSentences);
  }
  if (!problems.empty()) throw ConfigError(problems);
  if (has_datasets) vocabulary_ = bert_vocabulary_of(*tokenizer);
}

std::vector<const Module*> BertTask::build_model(const ModelSite& site) {
  sample_weights_ =
      full({config().training.micro_batch_size, 1}, 1.0f, DType::kFloat32, site.stream);
  return ModelTask::build_model(site);
}

SplitDatasets BertTask::open_datasets(const SampleCounts& sizes) const {
  if (vocabulary_ == nullptr) throw ConfigError(kNoBertSentences);
  BertDataset::Settings settings;
  settings.masking.probability = config().data.mask_prob;
  settings.short_seq_prob = config().data.short_seq_prob;
  settings.has_binary_head = config().transformer.bert_binary_head;
  settings.vocabulary = vocabulary_;
  return build_split_datasets(config().data, sizes, config().transformer.seq_length,
                              config().training.seed, tokenizer(), bert_dataset_maker(settings));
}

TextMicrobatch BertTask::make_batch(const SampleDataset& dataset, const SampleGroup& group,
                                    Split split, int64_t chunk) const {
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t s = config().transformer.seq_length;
  const Shape shape = {b, s};
  Tensor tokens(shape, DType::kInt64, Stream{});
  Tensor types(shape, DType::kInt64, Stream{});
  Tensor padding_mask(shape, DType::kBool, Stream{});
  TokenTargets targets = {.labels = Tensor(shape, DType::kInt64, Stream{}),
                          .loss_mask = Tensor(shape, DType::kFloat32, Stream{}),
                          .is_random = Tensor({b}, DType::kInt64, Stream{})};
  std::vector<int64_t> run(static_cast<size_t>(dataset.sample_size()));
  for (size_t row = 0; row < group.indices.size(); ++row) {
    dataset.read(group.indices[row], run);
    const BertSample sample(run);
    const size_t first = row * static_cast<size_t>(s);
    for (size_t i = 0; i < static_cast<size_t>(s); ++i) {
      tokens.span<int64_t>()[first + i] = sample.text[i];
      types.span<int64_t>()[first + i] = sample.types[i];
      padding_mask.span<bool>()[first + i] = sample.padding_mask[i] == 0;
      targets.labels.span<int64_t>()[first + i] = sample.labels[i];
      targets.loss_mask.span<float>()[first + i] = static_cast<float>(sample.loss_mask[i]);
    }
    targets.is_random.span<int64_t>()[row] = sample.is_random;
  }
  return part_of({{.tokens = tokens, .token_types = types, .padding_mask = padding_mask}, targets},
                 chunk, split);
}

MicrobatchOutput BertTask::loss(const Model& model, const Variable& hidden,
                                const TokenTargets& targets) const {
  const BertLosses losses =
      bert_losses(static_cast<const BertModel&>(model), hidden, targets, sample_weights_);
  MicrobatchOutput output = {.losses = {losses.lm}, .logged = {{"lm loss", losses.lm.data()}}};
  if (losses.sop.defined()) {
    output.losses.push_back(losses.sop);
    output.logged.emplace_back("sop loss", losses.sop.data());
  }
  return output;
}

void BertTask::close() {
  ModelTask::close();
  sample_weights_ = {};
}

}  // namespace megatron
