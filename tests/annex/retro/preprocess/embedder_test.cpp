#include "annex/retro/preprocess/embedder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "annex/retro/preprocess/bert_embedder.h"
#include "megatron/core/error.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/transformer/init.h"
#include "tests/annex/retro/preprocess/letter_tokenizer.h"
#include "tests/support/message_of.h"

namespace megatron::retro {
namespace {

using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

std::vector<float> row(const std::vector<float>& all, size_t i, size_t width) {
  return {all.begin() + static_cast<std::ptrdiff_t>(i * width),
          all.begin() + static_cast<std::ptrdiff_t>((i + 1) * width)};
}

double product(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST(HashedEmbedderTest, NearTextsHaveNearVectors) {
  const auto embedder = make_hashed_embedder(256);
  const std::vector<std::string> texts = {
      "The river flows to the sea.", "the RIVER flows to the sea",
      "the river flows to the old mill", "Nobody sold a quiet garden", " .,- "};
  const std::vector<float> all = embedder->embed(texts);
  ASSERT_EQ(all.size(), 5u * 256);
  const auto vector = [&](size_t i) { return row(all, i, 256); };
  EXPECT_NEAR(product(vector(0), vector(0)), 1, 1e-6);
  EXPECT_EQ(vector(0), vector(1));
  EXPECT_GT(product(vector(0), vector(2)), 0.5);
  EXPECT_LT(product(vector(0), vector(3)), 0.3);
  EXPECT_THAT(vector(4), Each(0.0F));
  EXPECT_EQ(row(embedder->embed(std::span(texts).subspan(2, 1)), 0, 256), vector(2));
}

TEST(HashedEmbedderTest, CountsPairsOfWords) {
  const auto embedder = make_hashed_embedder(512);
  const std::vector<std::string> texts = {"dog bites man", "man bites dog"};
  const std::vector<float> all = embedder->embed(texts);
  EXPECT_NEAR(product(row(all, 0, 512), row(all, 1, 512)), 3.0 / 5, 1e-6);  // no pair is common
}

class BertEmbedderTest : public testing::Test {
 protected:
  BertEmbedderTest() : model_(small_bert(), Stream{}) { initialize(model_, 5); }

  static TransformerConfig small_bert() {
    TransformerConfig config;
    config.kind = ModelKind::kBert;
    config.num_layers = 2;
    config.hidden_size = 32;
    config.num_attention_heads = 4;
    config.seq_length = 16;
    config.max_position_embeddings = 16;
    config.padded_vocab_size = 128;
    config.true_vocab_size = 128;
    config.init_method_std = 0.3;
    config.hidden_dropout = 0;
    config.attention_dropout = 0;
    return resolved(config);
  }
  // The definition, for one text.
  std::vector<float> mean_of(const std::vector<int32_t>& ids) const {
    const NoGrad no_grad;
    RandomState random(0);
    random.set_training(false);
    const Tensor tokens = tensor_of_rows({ids});
    ModelInput input = {.tokens = tokens};
    if (model_.config().tokentypes() > 0) {
      input.token_types = zeros(tokens.shape(), DType::kInt64, Stream{});
    }
    const Tensor states = model_.hidden_states(input, random).data();  // [s, 1, h]
    std::vector<float> mean(32);
    for (size_t t = 1; t + 1 < ids.size(); ++t) {
      for (size_t k = 0; k < 32; ++k) mean[k] += states.span<float>()[t * 32 + k];
    }
    for (float& value : mean) value /= static_cast<float>(ids.size() - 2);
    return mean;
  }

  BertModel model_;
  LetterTokenizer tokenizer_;
};

TEST_F(BertEmbedderTest, IsTheMeanOfTheTokensStates) {
  const auto embedder =
      make_bert_embedder({model_}, tokenizer_, {.batch_size = 3, .max_length = 8});
  const std::vector<std::string> texts = {"abc", "", "a", "abcdefghijk", "xy"};
  const std::vector<float> all = embedder->embed(texts);
  ASSERT_EQ(embedder->dimension(), 32);
  ASSERT_EQ(all.size(), 5u * 32);
  // [CLS] is 2, [SEP] 3, [PAD] 1; a text is cut to 8 tokens.
  const std::vector<std::vector<int32_t>> ids = {{2, 'a', 'b', 'c', 3},
                                                 {2, 1, 3},
                                                 {2, 'a', 3},
                                                 {2, 'a', 'b', 'c', 'd', 'e', 'f', 3},
                                                 {2, 'x', 'y', 3}};
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_THAT(row(all, i, 32), Pointwise(FloatNear(1e-5F), mean_of(ids[i]))) << i;
  }
}

TEST_F(BertEmbedderTest, RefusesTooManyPositions) {
  EXPECT_THAT(message_of([&] { make_bert_embedder({model_}, tokenizer_, {.max_length = 17}); }),
              HasSubstr("--retro-bert-max-chunk-length 17 is more than the 16 positions"));
}

}  // namespace
}  // namespace megatron::retro
