#include "megatron/data/text_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr int64_t kTextsOfGroup = 1000;

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

TokenizedTexts tokenized_texts(std::span<const std::filesystem::path> files,
                               const TextFileOptions& options, const Tokenizer& tokenizer) {
  TokenizedTexts texts;
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  for (const std::filesystem::path& file : files) {
    read_texts(file, options, [&](std::string_view text) {
      encoder->append(text, texts.ids);
      texts.ends.push_back(static_cast<int64_t>(texts.ids.size()));
    });
  }
  return texts;
}

std::shared_ptr<const TextBlocks> numbered_blocks(int64_t n) {
  auto blocks = std::make_shared<TextBlocks>();
  blocks->block_size = 1;
  blocks->ids.resize(static_cast<size_t>(n));
  std::iota(blocks->ids.begin(), blocks->ids.end(), 0);
  return blocks;
}

TextBlocks text_blocks(const TokenizedTexts& texts, int64_t begin, int64_t end,
                       int64_t block_size) {
  TextBlocks blocks{.block_size = block_size, .ids = {}};
  const auto end_of = [&](int64_t text) {
    return text == 0 ? 0 : texts.ends[static_cast<size_t>(text - 1)];
  };
  for (int64_t text = begin; text < end; text += kTextsOfGroup) {
    const int64_t first = end_of(text);
    const int64_t size = end_of(std::min(text + kTextsOfGroup, end)) - first;
    const auto from = texts.ids.begin() + first;
    blocks.ids.insert(blocks.ids.end(), from, from + size / block_size * block_size);
  }
  return blocks;
}

// The orders of the epochs that are being read: the readers of two epochs overlap.
class EpochDataset::Orders {
 public:
  using Order = std::shared_ptr<const std::vector<int64_t>>;

  Orders(int64_t num_blocks, int64_t seed) : num_blocks_(num_blocks), seed_(seed) {}

  Order of(int64_t epoch) {
    const std::lock_guard lock(mutex_);
    auto& [known_epoch, order] = known_[static_cast<size_t>(epoch % 2)];
    if (known_epoch != epoch) {
      order = std::make_shared<const std::vector<int64_t>>(
          torch_randperm(num_blocks_, static_cast<uint64_t>(seed_ + epoch)));
      known_epoch = epoch;
    }
    return order;
  }

 private:
  const int64_t num_blocks_;
  const int64_t seed_;
  std::mutex mutex_;
  std::array<std::pair<int64_t, Order>, 2> known_ = {{{-1, nullptr}, {-1, nullptr}}};
};

EpochDataset::EpochDataset(std::shared_ptr<const TextBlocks> blocks, const Options& options)
    : blocks_(std::move(blocks)),
      options_(options),
      epoch_samples_(options.drops_last
                         ? blocks_->num_blocks() / options.batch_size * options.batch_size
                         : rounded_up(blocks_->num_blocks(), options.batch_size)),
      orders_(options.is_shuffled ? std::make_unique<Orders>(blocks_->num_blocks(), options.seed)
                                  : nullptr) {
  invariant(epoch_samples_ > 0, "an epoch has blocks");
}

EpochDataset::~EpochDataset() = default;

void EpochDataset::read(int64_t sample, std::span<int64_t> out) const {
  if (sample < 0 || sample >= options_.num_samples) {
    throw Error(
        fmt::format("sample {} is not one of the {} of the data", sample, options_.num_samples));
  }
  const int64_t place = sample % epoch_samples_ % blocks_->num_blocks();
  const int64_t block = orders_ == nullptr
                            ? place
                            : (*orders_->of(sample / epoch_samples_))[static_cast<size_t>(place)];
  const auto from = blocks_->ids.begin() + block * blocks_->block_size;
  std::copy_n(from, blocks_->block_size, out.begin());
  out.back() = options_.last_id;
}

}  // namespace megatron
