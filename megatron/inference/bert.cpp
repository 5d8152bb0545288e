#include "megatron/inference/bert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/stages.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

ModelInput input_of(const BertModel& model, const BertTexts& texts) {
  const TransformerConfig& config = model.config();
  expect_texts(texts.ids);
  const auto length = static_cast<int64_t>(texts.ids[0].size());
  if (length > config.max_position_embeddings) {
    throw ConfigError(
        fmt::format("{} tokens are more than the {} positions of the model; cut the "
                    "text into shorter ones",
                    length, config.max_position_embeddings));
  }
  expect_below(texts.ids, config.counted_vocab_size(), "token id",
               "use the tokenizer the model was trained with");
  ModelInput input = {.tokens = tensor_of_rows(texts.ids)};
  if (!texts.token_types.empty()) {
    expect_like_ids(texts.token_types, texts.ids, "token_types");
    expect_below(texts.token_types, std::max<int64_t>(config.tokentypes(), 1), "token type",
                 "the model supports no others");
  }
  if (config.tokentypes() > 0) {
    input.token_types = texts.token_types.empty()
                            ? zeros(input.tokens.ids.shape(), DType::kInt64, Stream{})
                            : tensor_of_rows(texts.token_types);
  }
  input.padding_mask = padding_mask_of(texts.attention_mask, texts.ids);
  return input;
}

// Runs texts through this rank's stage: [s, b, h], the model's output on the last stage only.
Variable pass(const BertInference& model, const ModelInput& input) {
  RandomState random(0);
  random.set_training(false);
  const Tensor& ids = input.tokens.ids;
  const BertModel& chunk = model.chunk;
  const Variable x = received_activations(model.parallel, chunk.config(), ids.size(1), ids.size(0),
                                          chunk.stream());
  Variable y = chunk.forward(input, {&x, 1}, random).back();
  send_to_next(model.parallel, y);
  return y;
}

// The most probable ids by logits [vocab_size].
std::vector<LikelyWord> best_of(std::span<const float> logits, int64_t k, int64_t vocab_size) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  if (!std::isfinite(sum)) throw Error("the model computes values that are not numbers");
  std::vector<int32_t> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min(k, vocab_size);
  const auto logit_of = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
  });
  std::vector<LikelyWord> words;
  for (auto id = order.begin(); id != end; ++id) {
    words.push_back({*id, std::exp(static_cast<double>(logit_of(*id)) - largest) / sum});
  }
  return words;
}

void expect_heads(const BertInference& model, bool is_classifier) {
  if (model.chunk.heads().is_classifier() == is_classifier) return;
  throw ConfigError(is_classifier
                        ? "the model has no classification head"
                        : "the model classifies texts and has no head for words; use classify");
}

// Turns logits into probabilities in place: softmax over exclusive classes, or sigmoid of each.
void to_probabilities(std::vector<double>& values, ClassKind kind) {
  if (kind == ClassKind::kIndependent || values.size() == 1) {
    for (double& value : values) value = 1 / (1 + std::exp(-value));
    return;
  }
  const double largest = *std::ranges::max_element(values);
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
}

}  // namespace

std::vector<std::vector<double>> class_probabilities(const BertInference& model,
                                                     const BertTexts& texts, ClassKind kind) {
  expect_heads(model, true);
  const NoGrad no_grad;
  const Variable hidden = pass(model, input_of(model.chunk, texts));
  const int64_t classes = model.chunk.heads().num_classes;
  Tensor logits({std::ssize(texts.ids), classes}, DType::kFloat32, Stream{});
  if (model.parallel.is_last_stage()) {
    RandomState random(0);
    random.set_training(false);
    const Tensor own = model.chunk.class_logits(hidden, random).data();
    const Tensor host = cast(own, DType::kFloat32).to(Stream{});
    std::ranges::copy(host.span<float>(), logits.span<float>().begin());
  }
  share_from_head(model.parallel, logits);
  std::vector<std::vector<double>> result;
  const auto values = std::as_const(logits).span<float>();
  for (size_t i = 0; i < texts.ids.size(); ++i) {
    const auto row = values.subspan(i * static_cast<size_t>(classes), static_cast<size_t>(classes));
    to_probabilities(result.emplace_back(row.begin(), row.end()), kind);
  }
  return result;
}

double bert_loss(const BertInference& model, const BertTexts& texts, const BertLabels& labels) {
  expect_heads(model, false);
  const TransformerConfig& config = model.chunk.config();
  const NoGrad no_grad;
  const ModelInput input = input_of(model.chunk, texts);
  expect_like_ids(labels.words, texts.ids, "labels");
  const Targets targets = targets_of(labels.words, config.counted_vocab_size());
  const size_t b = texts.ids.size();
  const bool has_order = !labels.next_sentence.empty();
  if (has_order && (labels.next_sentence.size() != b || !config.bert_binary_head)) {
    throw ConfigError(config.bert_binary_head
                          ? "\"next_sentence_label\" must have a value for each text"
                          : "\"next_sentence_label\" is for a model with a binary head; leave it "
                            "out");
  }
  std::vector<int64_t> order(b, 0);
  for (size_t i = 0; has_order && i < b; ++i) order[i] = labels.next_sentence[i];
  if (std::ranges::any_of(order, [](int64_t value) { return value != 0 && value != 1; })) {
    throw ConfigError("\"next_sentence_label\" must be 0 or 1");
  }

  const Variable hidden = pass(model, input);
  Tensor loss({1}, DType::kFloat64, Stream{});
  if (model.parallel.is_last_stage()) {
    const Stream stream = model.chunk.stream();
    const auto rows = static_cast<int64_t>(b);
    const BertLosses losses = bert_losses(model.chunk, hidden,
                                          {.labels = targets.labels.to(stream),
                                           .loss_mask = targets.loss_mask.to(stream),
                                           .is_random = tensor_of(order, {rows}).to(stream)},
                                          full({rows, 1}, 1.0F, DType::kFloat32, stream));
    loss.span<double>()[0] = losses.lm.data().item() + (has_order ? losses.sop.data().item() : 0.0);
  }
  share_from_head(model.parallel, loss);
  return loss.item();
}

std::vector<float> pooled_states(const BertInference& model, const BertTexts& texts,
                                 Pooling pooling) {
  const NoGrad no_grad;
  const Variable hidden = pass(model, input_of(model.chunk, texts));
  const auto b = static_cast<int64_t>(texts.ids.size());
  const int64_t h = model.chunk.config().hidden_size;
  Tensor pooled({b, h}, DType::kFloat32, Stream{});
  if (model.parallel.is_last_stage()) {
    const Tensor states = cast(hidden.data(), DType::kFloat32).to(Stream{});  // [s, b, h]
    const std::span<const float> values = states.span<float>();
    for (int64_t i = 0; i < b; ++i) {
      const auto row = static_cast<size_t>(i);
      const int64_t seen = texts.attention_mask.empty()
                               ? std::ssize(texts.ids[row])
                               : std::ranges::count(texts.attention_mask[row], 1);
      const bool is_inner = pooling == Pooling::kMeanInner;
      const int64_t begin = pooling == Pooling::kLast ? seen - 1 : is_inner ? 1 : 0;
      const int64_t end = pooling == Pooling::kFirst ? 1 : is_inner ? seen - 1 : seen;
      for (int64_t k = 0; k < h; ++k) {
        double sum = 0;
        for (int64_t t = begin; t < end; ++t) {
          sum += static_cast<double>(values[static_cast<size_t>((t * b + i) * h + k)]);
        }
        pooled.span<float>()[static_cast<size_t>(i * h + k)] =
            static_cast<float>(sum / static_cast<double>(std::max<int64_t>(end - begin, 1)));
      }
    }
  }
  share_from_head(model.parallel, pooled);
  return {pooled.span<float>().begin(), pooled.span<float>().end()};
}

std::vector<std::vector<LikelyWord>> likely_words(const BertInference& model,
                                                  std::span<const int32_t> ids,
                                                  std::span<const int64_t> positions, int64_t k,
                                                  int64_t vocab_size) {
  expect_heads(model, false);
  const NoGrad no_grad;
  const BertTexts texts = {.ids = {{ids.begin(), ids.end()}}};
  const Variable hidden = pass(model, input_of(model.chunk, texts));
  const int64_t rows = model.chunk.config().counted_vocab_size();
  std::vector<std::vector<LikelyWord>> result;
  for (const int64_t position : positions) {
    Tensor logits({rows}, DType::kFloat32, Stream{});
    if (model.parallel.is_last_stage()) {
      const Tensor own =
          model.chunk.logits(Variable(hidden.data().slice(position, 1))).data();  // [1, 1, v/tp]
      const Tensor all = gathered_last_axis(own, model.parallel.tensor.group);
      const Tensor host = cast(all, DType::kFloat32).to(Stream{});
      std::ranges::copy(host.span<float>().first(static_cast<size_t>(rows)),
                        logits.span<float>().begin());
    }
    share_from_head(model.parallel, logits);
    result.push_back(best_of(std::as_const(logits).span<float>(), k, std::min(vocab_size, rows)));
  }
  return result;
}

}  // namespace megatron
