#include "megatron/cli/random_task.h"

#include <fmt/format.h>

#include <random>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/models/bert/bert_task.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/models/t5/t5_task.h"

namespace megatron::cli {
namespace {

class RandomIds {
 public:
  explicit RandomIds(const ParallelContext& parallel)
      : generator_(1234 + static_cast<uint64_t>(parallel.replica())) {}

  // `count` ids below `rows`.
  std::vector<int64_t> draw(int64_t count, int64_t rows) {
    std::uniform_int_distribution<int64_t> id(0, rows - 1);
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& value : ids) value = id(generator_);
    return ids;
  }

 private:
  std::mt19937_64 generator_;
};

class RandomGptTask final : public GptTask {
 public:
  explicit RandomGptTask(const RunConfig& config) : GptTask(config, nullptr) {}

  void open_data(const Progress&) override { ids_ = std::make_unique<RandomIds>(parallel()); }
  bool has_split(Split split) const override { return split == Split::kTrain; }

  Microbatch get_batch(Split, int64_t chunk) override {
    if (!reads_data(chunk)) return {};
    const int64_t length = config().transformer.seq_length;
    const int64_t rows = config().transformer.padded_vocab_size;
    const int64_t size = config().training.micro_batch_size * length;
    GptBatch batch;  // the first and the last stage draw the same tokens, too
    batch.micro_batch_size = config().training.micro_batch_size;
    batch.seq_length = length;
    batch.tokens = ids_->draw(size, rows);
    batch.labels = ids_->draw(size, rows);
    batch.loss_mask.assign(static_cast<size_t>(size), 1.0F);
    for (int64_t i = 0; i < size; ++i) batch.position_ids.push_back(i % length);
    return part_of_batch(batch, chunk, Split::kTrain);
  }

 private:
  std::unique_ptr<RandomIds> ids_;
};

// No token is padding; about --mask-prob of the words count in the loss.
class RandomBertTask final : public BertTask {
 public:
  explicit RandomBertTask(const RunConfig& config) : BertTask(config, nullptr) {}

  void open_data(const Progress&) override { ids_ = std::make_unique<RandomIds>(parallel()); }
  bool has_split(Split split) const override { return split == Split::kTrain; }

  Microbatch get_batch(Split, int64_t chunk) override {
    constexpr int64_t kParts = 1000;
    const int64_t rows = config().transformer.padded_vocab_size;
    const int64_t b = config().training.micro_batch_size;
    const Shape shape = {b, config().transformer.seq_length};
    const int64_t size = shape.numel();
    const ModelInput input = {.tokens = tensor_of(ids_->draw(size, rows), shape),
                              .token_types = tensor_of(ids_->draw(size, 2), shape),
                              .padding_mask = zeros(shape, DType::kBool, Stream{})};
    TokenTargets targets = {.labels = tensor_of(ids_->draw(size, rows), shape),
                            .loss_mask = Tensor(shape, DType::kFloat32, Stream{}),
                            .is_random = tensor_of(ids_->draw(b, 2), {b})};
    const std::vector<int64_t> parts = ids_->draw(size, kParts);
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool counts = static_cast<double>(parts[i]) < kParts * config().data.mask_prob;
      targets.loss_mask.span<float>()[i] = counts ? 1.0F : 0.0F;
    }
    return part_of({input, targets}, chunk, Split::kTrain);
  }

 private:
  std::unique_ptr<RandomIds> ids_;
};

// No token is padding, and all count in the loss.
class RandomT5Task final : public ModelTask {
 public:
  explicit RandomT5Task(const RunConfig& config) : ModelTask(config, nullptr) {
    const std::vector<std::string> problems = t5_run_problems(config);
    if (!problems.empty()) throw ConfigError(problems);
  }

  void open_data(const Progress&) override { ids_ = std::make_unique<RandomIds>(parallel()); }
  bool has_split(Split split) const override { return split == Split::kTrain; }

  Microbatch get_batch(Split, int64_t chunk) override {
    const TransformerConfig& c = config().transformer;
    const int64_t b = config().training.micro_batch_size;
    const Shape of_encoder = {b, c.seq_length};
    const Shape of_decoder = {b, c.decoder_seq_length};
    const auto drawn = [&](const Shape& shape) {
      return tensor_of(ids_->draw(shape.numel(), c.padded_vocab_size), shape);
    };
    return part_of({{.tokens = drawn(of_encoder),
                     .padding_mask = zeros(of_encoder, DType::kBool, Stream{}),
                     .decoder_tokens = drawn(of_decoder)},
                    {.labels = drawn(of_decoder),
                     .loss_mask = full(of_decoder, 1.0F, DType::kFloat32, Stream{})}},
                   chunk, Split::kTrain);
  }

 private:
  SplitDatasets open_datasets(const SampleCounts&) const override { return {}; }
  TextMicrobatch make_batch(const SampleDataset&, const SampleGroup&, Split,
                            int64_t) const override {
    return {};
  }

  std::unique_ptr<RandomIds> ids_;
};

}  // namespace

std::unique_ptr<TrainTask> random_task(const RunConfig& config) {
  if (config.transformer.is_encoder_decoder()) return std::make_unique<RandomT5Task>(config);
  if (config.transformer.has_encoder()) return std::make_unique<RandomBertTask>(config);
  return std::make_unique<RandomGptTask>(config);
}

}  // namespace megatron::cli
