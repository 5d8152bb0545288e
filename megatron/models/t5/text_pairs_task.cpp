#include "megatron/models/t5/text_pairs_task.h"

#include <algorithm>
#include <utility>

namespace megatron {
namespace {

constexpr int64_t kNoLabel = -1;

}  // namespace

TextPairsTask::TextPairsTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                             Data data, const Ids& ids)
    : T5Task(config, nullptr), tokenizer_(std::move(tokenizer)), data_(std::move(data)), ids_(ids) {
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

void TextPairsTask::open_data(const Progress& progress) {
  const TrainingConfig& training = config().training;
  const auto opened = [&](const std::shared_ptr<const TextPairs>& pairs, int64_t num_samples,
                          bool is_shuffled) -> std::shared_ptr<const SampleDataset> {
    if (pairs == nullptr || num_samples == 0) return nullptr;
    return std::make_shared<EpochDataset>(
        numbered_blocks(pairs->num_pairs()),
        EpochDataset::Options{.num_samples = num_samples,
                              .batch_size = training.global_batch_size,
                              .is_shuffled = is_shuffled,
                              .seed = training.seed});
  };
  loaders_.open(
      config(), parallel(), model_name(), progress, {true},
      [&](const SampleCounts& sizes) -> SplitDatasets {
        return {.train = opened(data_.train, sizes.train, true),
                .valid = opened(data_.valid, sizes.valid, false),
                .test = nullptr};
      },
      [this](const SampleDataset& order, const SampleGroup& group, Split split, int64_t) {
        return microbatch(samples(order, group, split), split == Split::kTrain);
      });
}

T5Task::Samples TextPairsTask::samples(const SampleDataset& order, const SampleGroup& group,
                                       Split split) const {
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
  Samples made = {.encoder_tokens = tensor_of(encoder, {b, se}),
                  .encoder_padding_mask = padding,
                  .decoder_tokens = tensor_of(decoder, {b, sd}),
                  .labels = tensor_of(labels, {b, sd}),
                  .loss_mask = mask};
  if (!is_training) {
    made.loss_divisor = full({}, evaluation.divisor(num_valid_labels_), DType::kFloat32, Stream{});
  }
  return made;
}

void TextPairsTask::evaluated(Split split, const Progress& progress, const NamedValues& losses) {
  report_.evaluated(split, config().training, progress, losses);
}

void TextPairsTask::close() {
  loaders_.close();
  T5Task::close();
}

std::map<std::string, ArgMap> TextPairsTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron
