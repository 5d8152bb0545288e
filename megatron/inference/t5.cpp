#include "megatron/inference/t5.h"

#include <algorithm>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// What the encoder reads of texts.
T5Input input_of(const T5Model& model, const T5Texts& texts) {
  const TransformerConfig& config = model.config();
  expect_texts(texts.ids);
  check_length(static_cast<int64_t>(texts.ids[0].size()), 0, config);
  for (const std::vector<int32_t>& row : texts.ids) check_ids(row, config.counted_vocab_size());
  return {.encoder_tokens = tensor_of_rows(texts.ids),
          .encoder_padding_mask = padding_mask_of(texts.attention_mask, texts.ids)};
}

// Labels one place later.
IdRows behind_start(const IdRows& labels, int32_t start) {
  IdRows shifted = labels;
  for (std::vector<int32_t>& row : shifted) {
    std::ranges::replace(row, kDoesNotCount, start);
    std::rotate(row.begin(), row.end() - 1, row.end());
    row.front() = start;
  }
  return shifted;
}

}  // namespace

double t5_loss(const T5Inference& inference, const T5Texts& texts, const IdRows& labels,
               int32_t start) {
  const T5Model& model = inference.model;
  const NoGrad no_grad;
  T5Input input = input_of(model, texts);
  expect_texts(labels);
  if (labels.size() != texts.ids.size()) {
    throw ConfigError("\"labels\" must have a list for each text");
  }
  check_length(static_cast<int64_t>(labels[0].size()), 0, model.config());
  check_ids(std::vector{start}, model.config().counted_vocab_size());
  const Targets targets = targets_of(labels, model.config().counted_vocab_size());
  input.decoder_tokens = tensor_of_rows(behind_start(labels, start));
  RandomState random(0);
  random.set_training(false);
  const Variable hidden = model.forward(input, {}, random).decoder;
  const Stream stream = model.stream();
  return t5_loss(model, hidden, targets.labels.to(stream), targets.loss_mask.to(stream))
      .data()
      .item();
}

}  // namespace megatron
