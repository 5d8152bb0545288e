#include "megatron/models/plan/planned_task.h"

#include <map>
#include <vector>

#include "megatron/models/bert/bert_task.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/models/model_task.h"

namespace megatron {
namespace {

Tensor first_ids(int64_t b, int64_t s) { return zeros({b, s}, DType::kInt64, Stream{}); }
Tensor full_mask(int64_t b, int64_t s) { return full({b, s}, 1, DType::kFloat32, Stream{}); }
Tensor no_padding(int64_t b, int64_t s) { return zeros({b, s}, DType::kBool, Stream{}); }

// Makes each chunk's microbatch once.
template <class Task>
class PlannedTask : public Task {
 public:
  explicit PlannedTask(const RunConfig& config) : Task(config, nullptr) {}

  Microbatch get_batch(Split split, int64_t chunk) override {
    if (!this->reads_data(chunk)) return {};
    const auto [found, is_new] = batches_.try_emplace(chunk);
    if (is_new) found->second = planned_batch(split, chunk);
    return found->second;
  }

 private:
  virtual TextMicrobatch planned_batch(Split split, int64_t chunk) const = 0;

  std::map<int64_t, TextMicrobatch> batches_;
};

// Plans a GPT or a Retro, whose neighbours follow the text.
class PlannedGpt final : public PlannedTask<GptTask> {
 public:
  using PlannedTask::PlannedTask;

 private:
  TextMicrobatch planned_batch(Split split, int64_t chunk) const override {
    const int64_t b = config().training.micro_batch_size;
    const int64_t s = config().transformer.seq_length;
    const auto count = static_cast<size_t>(b * s);
    GptBatch batch{.micro_batch_size = b,
                   .seq_length = s,
                   .tokens = std::vector<int64_t>(count),
                   .labels = std::vector<int64_t>(count),
                   .loss_mask = std::vector<float>(count, 1.0F),
                   .position_ids = std::vector<int64_t>(count),
                   .document_starts = {}};
    batch.neighbor_tokens.resize(static_cast<size_t>(b * trailing_ids_per_sample()));
    return part_of_batch(batch, chunk, split);
  }
};

class PlannedBert final : public PlannedTask<BertTask> {
 public:
  using PlannedTask::PlannedTask;

 private:
  TextMicrobatch planned_batch(Split split, int64_t chunk) const override {
    const int64_t b = config().training.micro_batch_size;
    const int64_t s = config().transformer.seq_length;
    return part_of({{.tokens = first_ids(b, s),
                     .token_types = first_ids(b, s),
                     .padding_mask = no_padding(b, s)},
                    {.labels = first_ids(b, s),
                     .loss_mask = full_mask(b, s),
                     .is_random = zeros({b}, DType::kInt64, Stream{})}},
                   chunk, split);
  }
};

class PlannedT5 final : public PlannedTask<ModelTask> {
 public:
  using PlannedTask::PlannedTask;

 private:
  SplitDatasets open_datasets(const SampleCounts&) const override { return {}; }
  TextMicrobatch make_batch(const SampleDataset&, const SampleGroup&, Split,
                            int64_t) const override {
    return {};
  }
  TextMicrobatch planned_batch(Split split, int64_t chunk) const override {
    const int64_t b = config().training.micro_batch_size;
    const int64_t of_encoder = config().transformer.seq_length;
    const int64_t of_decoder = config().transformer.decoder_seq_length;
    return part_of({{.tokens = first_ids(b, of_encoder),
                     .padding_mask = no_padding(b, of_encoder),
                     .decoder_tokens = first_ids(b, of_decoder)},
                    {.labels = first_ids(b, of_decoder), .loss_mask = full_mask(b, of_decoder)}},
                   chunk, split);
  }
};

}  // namespace

std::unique_ptr<TrainTask> planned_task(const RunConfig& config) {
  const TransformerConfig& model = config.transformer;
  if (model.is_encoder_decoder()) return std::make_unique<PlannedT5>(config);
  if (model.has_encoder()) return std::make_unique<PlannedBert>(config);
  return std::make_unique<PlannedGpt>(config);
}

}  // namespace megatron
