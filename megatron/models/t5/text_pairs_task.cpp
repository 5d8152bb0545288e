#include "megatron/models/t5/text_pairs_task.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/models/t5/t5_task.h"

namespace megatron {
namespace {

constexpr int64_t kNoLabel = -1;

}  // namespace

TextPairsTask::TextPairsTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                             Data data, const Ids& ids)
    : ModelTask(config, std::move(tokenizer)), data_(std::move(data)), ids_(ids) {
  const std::vector<std::string> problems = t5_run_problems(config);
  if (!problems.empty()) throw ConfigError(problems);
  if (data_.valid != nullptr) num_valid_labels_ = num_labels(*data_.valid);
}

int64_t TextPairsTask::num_labels(const TextPairs& pairs, int64_t pair) const {
  const int64_t room = config().transformer.decoder_seq_length - 1;
  return std::min(std::ssize(pairs.targets.text(pair)), room) + 1;
}

int64_t TextPairsTask::num_labels(const TextPairs& pairs) const {
  int64_t sum = 0;
  for (int64_t pair = 0; pair < pairs.num_pairs(); ++pair) sum += num_labels(pairs, pair);
  return sum;
}

SplitDatasets TextPairsTask::open_datasets(const SampleCounts& sizes) const {
  const TrainingConfig& training = config().training;
  const auto numbered = [](const std::shared_ptr<const TextPairs>& pairs) {
    return pairs == nullptr ? nullptr : numbered_blocks(pairs->num_pairs());
  };
  return epoch_datasets(numbered(data_.train), numbered(data_.valid), sizes,
                        {.batch_size = training.global_batch_size, .seed = training.seed});
}

TextMicrobatch TextPairsTask::make_batch(const SampleDataset& order, const SampleGroup& group,
                                         Split split, int64_t chunk) const {
  const TransformerConfig& c = config().transformer;
  const bool is_training = split == Split::kTrain;
  const TextPairs& pairs = is_training ? *data_.train : *data_.valid;
  const EvaluationSamples evaluation(config().training, pairs.num_pairs());
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t se = c.seq_length;
  const int64_t sd = c.decoder_seq_length;
  std::vector<int64_t> encoder(static_cast<size_t>(b * se), ids_.pad);
  std::vector<int64_t> decoder(static_cast<size_t>(b * sd), ids_.pad);
  std::vector<int64_t> labels(static_cast<size_t>(b * sd), kNoLabel);
  Tensor padding({b, se}, DType::kBool, Stream{});
  std::ranges::fill(padding.span<bool>(), true);
  Tensor mask = zeros({b, sd}, DType::kFloat32, Stream{});
  std::vector<int64_t> number(static_cast<size_t>(order.sample_size()));
  for (int64_t row = 0; row < b; ++row) {
    const int64_t index = group.indices[static_cast<size_t>(row)];
    order.read(index, number);
    const std::span<const int32_t> source = pairs.sources.text(number.front());
    const std::span<const int32_t> target = pairs.targets.text(number.front());
    const int64_t source_length = std::min(std::ssize(source), se - 1);
    const int64_t target_length = num_labels(pairs, number.front()) - 1;

    const auto words = encoder.begin() + row * se;
    *std::copy_n(source.begin(), source_length, words) = ids_.eos;
    std::fill_n(padding.span<bool>().begin() + row * se, source_length + 1, false);

    const auto inputs = decoder.begin() + row * sd;
    *inputs = ids_.start;
    std::copy_n(target.begin(), target_length, inputs + 1);
    *std::copy_n(target.begin(), target_length, labels.begin() + row * sd) = ids_.eos;
    const bool counts = is_training || evaluation.counts(index);
    std::fill_n(mask.span<float>().begin() + row * sd, target_length + 1, counts ? 1.0F : 0.0F);
  }
  TokenTargets targets = {.labels = tensor_of(labels, {b, sd}), .loss_mask = mask};
  if (!is_training) {
    targets.divisor = full({}, evaluation.divisor(num_valid_labels_), DType::kFloat32, Stream{});
  }
  return part_of({{.tokens = tensor_of(encoder, {b, se}),
                   .padding_mask = padding,
                   .decoder_tokens = tensor_of(decoder, {b, sd})},
                  targets},
                 chunk, split);
}

void TextPairsTask::evaluated(Split split, const Progress& progress, const NamedValues& losses) {
  report_.evaluated(split, config().training, progress, losses);
}

}  // namespace megatron
