#include "megatron/models/bert/masked_blocks_task.h"

#include <algorithm>
#include <utility>

#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr int64_t kNoMaskLabel = -1;
// Below them a masked token becomes [MASK], or a random token; else it stays.
constexpr double kHidden = 0.8;
constexpr double kReplaced = 0.9;

}  // namespace

int64_t MaskedBlock::num_masked() const {
  return std::ranges::count_if(labels, [](int64_t label) { return label != kNoMaskLabel; });
}

MaskedBlock masked_block(std::span<const int64_t> ids, double probability,
                         const MaskingVocabulary& vocabulary, uint32_t seed) {
  NumpyRandom random(seed);
  MaskedBlock block = {.tokens = {ids.begin(), ids.end()},
                       .labels = std::vector<int64_t>(ids.size(), kNoMaskLabel)};
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids[i];
    if (id == vocabulary.cls || id == vocabulary.sep || id == vocabulary.pad) continue;
    if (random.random() >= probability) continue;
    block.labels[i] = id;
    const double kind = random.random();
    const auto other = static_cast<int64_t>(random.random() * static_cast<double>(vocabulary.size));
    if (kind < kReplaced) block.tokens[i] = kind < kHidden ? vocabulary.mask : other;
  }
  return block;
}

MaskedBlocksTask::MaskedBlocksTask(const RunConfig& config,
                                   std::shared_ptr<const Tokenizer> tokenizer, BlockSplits data)
    : BertTask(config, std::move(tokenizer)), data_(std::move(data)) {
  if (data_.valid == nullptr) return;
  const int64_t size = data_.valid->block_size;
  for (int64_t block = 0; block < data_.valid->num_blocks(); ++block) {
    const auto begin = data_.valid->ids.begin() + block * size;
    const std::vector<int64_t> ids(begin, begin + size);
    num_valid_masked_ += masked(ids, block).num_masked();
  }
}

MaskedBlock MaskedBlocksTask::masked(std::span<const int64_t> ids, int64_t sample) const {
  return masked_block(ids, config().data.mask_prob, vocabulary(),
                      static_cast<uint32_t>(config().training.seed + sample));
}

SplitDatasets MaskedBlocksTask::open_datasets(const SampleCounts& sizes) const {
  const TrainingConfig& training = config().training;
  return epoch_datasets(data_.train, data_.valid, sizes,
                        {.batch_size = training.global_batch_size, .seed = training.seed});
}

TextMicrobatch MaskedBlocksTask::make_batch(const SampleDataset& blocks, const SampleGroup& group,
                                            Split split, int64_t chunk) const {
  const bool is_training = split == Split::kTrain;
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t s = config().transformer.seq_length;
  const Shape shape = {b, s};
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  Tensor mask = zeros(shape, DType::kFloat32, Stream{});
  std::vector<int64_t> ids(static_cast<size_t>(blocks.sample_size()));
  const EvaluationSamples evaluation(config().training,
                                     is_training ? 0 : data_.valid->num_blocks());
  for (int64_t row = 0; row < b; ++row) {
    const int64_t index = group.indices[static_cast<size_t>(row)];
    blocks.read(index, ids);
    const MaskedBlock block = masked(std::span(ids).first(static_cast<size_t>(s)),
                                     is_training ? index : evaluation.place(index));
    tokens.insert(tokens.end(), block.tokens.begin(), block.tokens.end());
    labels.insert(labels.end(), block.labels.begin(), block.labels.end());
    if (!is_training && !evaluation.counts(index)) continue;
    std::ranges::transform(block.labels, mask.span<float>().begin() + row * s,
                           [](int64_t label) { return label == kNoMaskLabel ? 0.0F : 1.0F; });
  }
  TokenTargets targets = {.labels = tensor_of(labels, shape), .loss_mask = mask};
  if (!is_training) {
    targets.divisor = full({}, evaluation.divisor(num_valid_masked_), DType::kFloat32, Stream{});
  }
  return part_of({{.tokens = tensor_of(tokens, shape),
                   .token_types = zeros(shape, DType::kInt64, Stream{}),
                   .padding_mask = zeros(shape, DType::kBool, Stream{})},
                  targets},
                 chunk, split);
}

void MaskedBlocksTask::evaluated(Split split, const Progress& progress, const NamedValues& losses) {
  report_.evaluated(split, config().training, progress, losses);
}

}  // namespace megatron
