#include "annex/retro/preprocess/bert_embedder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "annex/retro/preprocess/parallel_work.h"
#include "megatron/core/error.h"

namespace megatron::retro {
namespace {

class BertEmbedder final : public Embedder {
 public:
  BertEmbedder(const BertInference& model, const Tokenizer& tokenizer, BertEmbedderOptions options)
      : model_(model),
        tokenizer_(tokenizer),
        options_(options),
        cls_(tokenizer.required_id(SpecialToken::kCls)),
        sep_(tokenizer.required_id(SpecialToken::kSep)),
        pad_(tokenizer.required_id(SpecialToken::kPad)) {
    const TransformerConfig& config = model.chunk.config();
    if (options.max_length > config.max_position_embeddings) {
      throw ConfigError(fmt::format(
          "--retro-bert-max-chunk-length {} is more than the {} positions of the model; lower it",
          options.max_length, config.max_position_embeddings));
    }
    if (tokenizer.vocab_size() > config.counted_vocab_size()) {
      throw ConfigError(
          fmt::format("--retro-bert-vocab-file has {} tokens, the model of --load {}; give the "
                      "vocabulary that it was trained with",
                      tokenizer.vocab_size(), config.counted_vocab_size()));
    }
  }

  int64_t dimension() const override { return model_.chunk.config().hidden_size; }

  std::vector<float> embed(std::span<const std::string> texts) const override {
    IdRows ids(texts.size());
    for_each_number(std::ssize(texts), [&](int64_t i) {
      ids[static_cast<size_t>(i)] = encoded(texts[static_cast<size_t>(i)]);
    });
    std::vector<size_t> order(texts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return ids[i].size(); });

    const auto width = static_cast<size_t>(dimension());
    std::vector<float> vectors(texts.size() * width);
    const auto batch_size = static_cast<size_t>(options_.batch_size);
    for (size_t begin = 0; begin < order.size(); begin += batch_size) {
      const size_t end = std::min(begin + batch_size, order.size());
      const std::span<const size_t> batch(order.data() + begin, end - begin);
      const std::vector<float> means =
          pooled_states(model_, padded(ids, batch), Pooling::kMeanInner);
      for (size_t k = 0; k < batch.size(); ++k) {
        std::copy_n(means.begin() + static_cast<std::ptrdiff_t>(k * width), width,
                    vectors.begin() + static_cast<std::ptrdiff_t>(batch[k] * width));
      }
    }
    return vectors;
  }

 private:
  // [CLS] text [SEP]. Compat: a text without tokens is one [PAD].
  std::vector<int32_t> encoded(const std::string& text) const {
    std::vector<int32_t> inner = tokenizer_.encode(text);
    inner.resize(std::min(inner.size(), static_cast<size_t>(options_.max_length - 2)));
    if (inner.empty()) inner.push_back(pad_);
    inner.insert(inner.begin(), cls_);
    inner.push_back(sep_);
    return inner;
  }

  // The texts of a batch, of which the last one is the longest.
  BertTexts padded(const IdRows& ids, std::span<const size_t> batch) const {
    const size_t longest = ids[batch.back()].size();
    BertTexts texts;
    for (const size_t i : batch) {
      std::vector<int32_t> row = ids[i];
      std::vector<int32_t> mask(row.size(), 1);
      row.resize(longest, pad_);
      mask.resize(longest, 0);
      texts.ids.push_back(std::move(row));
      texts.attention_mask.push_back(std::move(mask));
    }
    return texts;
  }

  BertInference model_;
  const Tokenizer& tokenizer_;
  BertEmbedderOptions options_;
  int32_t cls_;
  int32_t sep_;
  int32_t pad_;
};

}  // namespace

std::unique_ptr<Embedder> make_bert_embedder(const BertInference& model, const Tokenizer& tokenizer,
                                             BertEmbedderOptions options) {
  return std::make_unique<BertEmbedder>(model, tokenizer, options);
}

}  // namespace megatron::retro
