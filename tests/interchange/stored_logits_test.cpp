#include "megatron/interchange/stored_logits.h"

#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/models/gpt/gpt_model.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

TransformerConfig small_config(bool is_llama) {
  TransformerConfig config;
  config.num_layers = 3;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.seq_length = 8;
  config.max_position_embeddings = 8;
  config.attention_dropout = 0.0;
  config.hidden_dropout = 0.0;
  if (is_llama) {
    config.normalization = Normalization::kRmsNorm;
    config.position_embedding_type = PositionEmbedding::kRope;
    config.activation = Activation::kSwiglu;
    config.add_bias_linear = false;
    config.untie_embeddings_and_output_weights = true;
  }
  config = resolved(config);
  config.padded_vocab_size = 12;
  return config;
}

TEST(StoredLogitsTest, AreThoseOfTheWholeModel) {
  for (const bool is_llama : {false, true}) {
    const TransformerConfig config = small_config(is_llama);
    const GptModel model(config, Stream{});
    initialize(model, 5);
    CheckpointState state;
    for (const Parameter& parameter : named_parameters(model)) {
      state.model.push_back(whole_tensor(parameter.name, parameter.variable.data()));
    }
    const Tensor tokens = tensor_of<int64_t>(std::vector<int64_t>{3, 1, 4, 1, 5, 9}, {2, 3});
    const NoGrad no_grad;
    RandomState random(0);
    const Tensor want = model.logits(model.hidden_states({.tokens = tokens}, random)).data();
    CheckpointContents contents = contents_of(state);
    expect_identical(stored_logits(contents, config, tokens), want);
    // The embedding, a layer, and what reading takes.
    EXPECT_GE(stored_logits_bytes(contents), 4 * num_parameters(model) / 3);

    contents.sections.at(kWeightsSection).erase("decoder.layers.1.mlp.linear_fc1.weight");
    EXPECT_THROW(stored_logits(contents, config, tokens), FormatError);
  }
}

}  // namespace
}  // namespace megatron
