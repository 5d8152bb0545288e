#include "megatron/inference/t5.h"

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/inference/stages.h"
#include "megatron/inference/t5_stages.h"

namespace megatron {
namespace {

ModelInput encoder_input(const TransformerConfig& config, const T5Texts& texts) {
  expect_texts(texts.ids);
  check_length(static_cast<int64_t>(texts.ids[0].size()), 0, config);
  for (const std::vector<int32_t>& row : texts.ids) check_ids(row, config.counted_vocab_size());
  return {.tokens = tensor_of_rows(texts.ids),
          .padding_mask = padding_mask_of(texts.attention_mask, texts.ids)};
}

// Labels shifted right by one.
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

double t5_loss(const InferenceModel& model, const T5Texts& texts, const IdRows& labels,
               int32_t start) {
  const TransformerConfig& config = model.config();
  const NoGrad no_grad;
  ModelInput input = encoder_input(config, texts);
  expect_texts(labels);
  if (labels.size() != texts.ids.size()) {
    throw ConfigError("\"labels\" must have a list for each text");
  }
  check_length(static_cast<int64_t>(labels[0].size()), 0, config);
  check_ids(std::vector{start}, config.counted_vocab_size());
  const Targets targets = targets_of(labels, config.counted_vocab_size());
  input.decoder_tokens = tensor_of_rows(behind_start(labels, start));
  const Variable hidden = run_decoder(model, input, run_encoder(model, input));
  Tensor loss({1}, DType::kFloat64, Stream{});
  if (model.parallel.is_last_stage()) {
    const Stream stream = model.stream();
    loss.span<double>()[0] =
        token_loss(*model.chunk, hidden,
                   {.labels = targets.labels.to(stream), .loss_mask = targets.loss_mask.to(stream)})
            .data()
            .item();
  }
  share_from_head(model.parallel, loss);
  return loss.item();
}

}  // namespace megatron
