#include "megatron/api/given_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/models/bert/bert_model.h"

namespace megatron::api {
namespace {

// Rows [first, first + count) of an array, as a tensor [count, length] on the host.
template <class T>
megatron::Tensor rows_of(std::span<const T> array, int64_t first, int64_t count, int64_t length) {
  return tensor_of(
      array.subspan(static_cast<size_t>(first * length), static_cast<size_t>(count * length)),
      {count, length});
}

// True where the attention mask hides a token; nothing is hidden without one.
megatron::Tensor padding_of(std::span<const int64_t> attention_mask, int64_t first, int64_t count,
                            int64_t length) {
  megatron::Tensor padding = zeros({count, length}, DType::kBool, Stream{});
  if (attention_mask.empty()) return padding;
  const auto begin = attention_mask.begin() + first * length;
  std::transform(begin, begin + count * length, padding.span<bool>().begin(),
                 [](int64_t sees) { return sees == 0; });
  return padding;
}

// A token with a label counts, as much as the batch's mask says.
TokenTargets targets_of(const Batch& batch, int64_t first, int64_t count, int64_t length) {
  megatron::Tensor labels = rows_of(batch.labels, first, count, length);
  megatron::Tensor mask = full({count, length}, 1.0F, DType::kFloat32, Stream{});
  if (!batch.loss_mask.empty()) mask = rows_of(batch.loss_mask, first, count, length);
  const std::span<const int64_t> ids = std::as_const(labels).span<int64_t>();
  const std::span<float> weights = mask.span<float>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) weights[i] = 0.0F;
  }
  return {.labels = std::move(labels), .loss_mask = std::move(mask)};
}

// Throws ShapeError for an array that another kind of model reads.
void expect_empty(std::string_view name, size_t size, std::string_view model) {
  if (size == 0) return;
  throw ShapeError(
      fmt::format("the batch has {}, which a {} does not read; leave them out", name, model));
}

}  // namespace

void expect_rows(std::string_view name, size_t size, int64_t rows, int64_t length) {
  if (std::cmp_equal(size, rows * length)) return;
  throw ShapeError(fmt::format("the batch's {} have {} elements; they must have {} rows of {}",
                               name, size, rows, length));
}

void expect_optional_rows(std::string_view name, size_t size, int64_t rows, int64_t length) {
  if (size != 0) expect_rows(name, size, rows, length);
}

GivenBertTask::GivenBertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                             const Task& changes, BertHeads heads)
    : BertTask(config, std::move(tokenizer), !config.data.mock_data),
      changes_(changes),
      heads_(std::move(heads)) {
  std::vector<std::string> problems;
  if (changes.loss_inputs() != LossInputs::kNone) {
    problems.emplace_back(
        "a loss of the task's own is for a GPT or a T5, and the model is a BERT; remove it");
  }
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  if (heads_.is_classifier() && stages != 1) {
    problems.push_back(fmt::format(
        "--pipeline-model-parallel-size {} must be 1 for a BERT with a classification head; "
        "divide the model by --tensor-model-parallel-size",
        stages));
  }
  if (!problems.empty()) throw ConfigError(problems);
}

bool GivenBertTask::weighs_tokens() const {
  return !heads_.is_classifier() && BertTask::weighs_tokens();
}

void GivenBertTask::adjust_parameter(OptimizedParameter& parameter) const {
  BertTask::adjust_parameter(parameter);
  change_parameter(changes_, parameter);
}

std::vector<std::unique_ptr<const megatron::Model>> GivenBertTask::make_chunks(
    const ModelSite& site) const {
  if (!heads_.is_classifier()) return BertTask::make_chunks(site);
  const TransformerConfig& c = config().transformer;
  std::vector<std::unique_ptr<const megatron::Model>> chunks;
  chunks.push_back(std::make_unique<const BertModel>(c, whole_model(c.num_layers),
                                                     site.parallel.tensor, site.stream, heads_));
  return chunks;
}

void GivenBertTask::take(const Batch& batch, int64_t rows) {
  const int64_t s = config().transformer.seq_length;
  const bool has_order = config().transformer.bert_binary_head && !heads_.is_classifier();
  expect_rows("tokens", batch.tokens.size(), rows, s);
  expect_optional_rows("token types", batch.token_types.size(), rows, s);
  expect_optional_rows("attention mask", batch.attention_mask.size(), rows, s);
  expect_optional_rows("loss mask", batch.loss_mask.size(), rows, s);
  expect_empty("decoder tokens", batch.decoder_tokens.size(), "BERT");
  if (has_order) {
    expect_rows("sentence orders", batch.sentence_order.size(), rows, 1);
    const auto wrong = std::ranges::find_if(batch.sentence_order,
                                            [](int64_t order) { return order < 0 || order > 1; });
    if (wrong != batch.sentence_order.end()) {
      throw ShapeError(fmt::format("the batch's sentence order {} must be 0 or 1", *wrong));
    }
  } else {
    expect_empty("sentence orders", batch.sentence_order.size(), "BERT without that head");
  }
  if (!heads_.is_classifier()) {
    expect_empty("values", batch.values.size(), "BERT without a classification head");
    expect_rows("labels", batch.labels.size(), rows, s);
  } else if (heads_.num_classes == 1) {
    expect_rows("values", batch.values.size(), rows, 1);
    expect_empty("labels", batch.labels.size(), "BERT with one output, whose targets are values,");
  } else {
    expect_empty("values", batch.values.size(), "BERT with several outputs");
    if (std::ssize(batch.labels) != rows) {
      expect_rows("labels", batch.labels.size(), rows, heads_.num_classes);
    }
  }
  given_ = std::make_unique<const Batch>(batch);
  next_rows_ = {};
}

LabelKind GivenBertTask::label_kind() const {
  if (heads_.num_classes == 1) return LabelKind::kValue;
  const bool is_class =
      given_->tokens.size() ==
      given_->labels.size() * static_cast<size_t>(config().transformer.seq_length);
  return is_class ? LabelKind::kClass : LabelKind::kIndependent;
}

megatron::Tensor GivenBertTask::class_labels(int64_t first, int64_t count) const {
  const LabelKind kind = label_kind();
  if (kind == LabelKind::kValue) {
    return rows_of(given_->values, first, count, 1).reshape({count});
  }
  const bool is_class = kind == LabelKind::kClass;
  const int64_t n = is_class ? 1 : heads_.num_classes;
  megatron::Tensor labels = rows_of(given_->labels, first, count, n).reshape({count * n, 1});
  expect_labels(labels, is_class ? heads_.num_classes : 2);
  return labels;
}

Microbatch GivenBertTask::get_batch(Split split, int64_t chunk) {
  if (given_ == nullptr) return BertTask::get_batch(split, chunk);
  const int64_t b = config().training.micro_batch_size;
  const int64_t s = config().transformer.seq_length;
  const int64_t first = next_rows_.take(chunk, b);
  ModelInput input = {.tokens = rows_of(given_->tokens, first, b, s),
                      .token_types = given_->token_types.empty()
                                         ? zeros({b, s}, DType::kInt64, Stream{})
                                         : rows_of(given_->token_types, first, b, s),
                      .padding_mask = padding_of(given_->attention_mask, first, b, s)};
  if (heads_.is_classifier()) {
    TextMicrobatch made = part_of({.input = std::move(input)}, chunk, split);
    made.targets.labels = class_labels(first, b);
    return made;
  }
  TokenTargets targets = targets_of(*given_, first, b, s);
  targets.is_random = given_->sentence_order.empty()
                          ? zeros({b}, DType::kInt64, Stream{})
                          : rows_of(given_->sentence_order, first, b, 1).reshape({b});
  return part_of({std::move(input), std::move(targets)}, chunk, split);
}

MicrobatchOutput GivenBertTask::loss(const megatron::Model& model, const Variable& hidden,
                                     const TokenTargets& targets) const {
  if (!heads_.is_classifier()) return BertTask::loss(model, hidden, targets);
  const Variable scores = static_cast<const BertModel&>(model).class_logits(hidden, random());
  const Variable loss = label_loss(label_kind(), scores, targets.labels, sample_weights());
  return {.losses = {loss}, .logged = {{"loss", loss.data()}}};
}

GivenT5Task::GivenT5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                         const Task& changes)
    : T5Task(config, std::move(tokenizer), !config.data.mock_data), changes_(changes) {}

bool GivenT5Task::weighs_tokens() const {
  return changes_.loss_inputs() == LossInputs::kNone && T5Task::weighs_tokens();
}

void GivenT5Task::adjust_parameter(OptimizedParameter& parameter) const {
  T5Task::adjust_parameter(parameter);
  change_parameter(changes_, parameter);
}

void GivenT5Task::take(const Batch& batch, int64_t rows) {
  const int64_t se = config().transformer.seq_length;
  const int64_t sd = config().transformer.decoder_seq_length;
  expect_rows("tokens", batch.tokens.size(), rows, se);
  expect_optional_rows("attention mask", batch.attention_mask.size(), rows, se);
  expect_rows("decoder tokens", batch.decoder_tokens.size(), rows, sd);
  expect_rows("labels", batch.labels.size(), rows, sd);
  expect_optional_rows("loss mask", batch.loss_mask.size(), rows, sd);
  expect_empty("token types", batch.token_types.size(), "T5");
  expect_empty("sentence orders", batch.sentence_order.size(), "T5");
  expect_empty("values", batch.values.size(), "T5");
  given_ = std::make_unique<const Batch>(batch);
  next_rows_ = {};
}

Microbatch GivenT5Task::get_batch(Split split, int64_t chunk) {
  if (given_ == nullptr) return T5Task::get_batch(split, chunk);
  const int64_t b = config().training.micro_batch_size;
  const int64_t se = config().transformer.seq_length;
  const int64_t sd = config().transformer.decoder_seq_length;
  const int64_t first = next_rows_.take(chunk, b);
  return part_of({{.tokens = rows_of(given_->tokens, first, b, se),
                   .padding_mask = padding_of(given_->attention_mask, first, b, se),
                   .decoder_tokens = rows_of(given_->decoder_tokens, first, b, sd)},
                  targets_of(*given_, first, b, sd)},
                 chunk, split);
}

MicrobatchOutput GivenT5Task::forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                           std::span<const Variable> activations) {
  running_.split = split;
  MicrobatchOutput output = T5Task::forward_step(split, chunk, batch, activations);
  if (!output.logged.empty()) output.logged.front().first = changes_.loss_name();
  return output;
}

MicrobatchOutput GivenT5Task::loss(const megatron::Model& model, const Variable& hidden,
                                   const TokenTargets& targets) const {
  if (changes_.loss_inputs() == LossInputs::kNone) return T5Task::loss(model, hidden, targets);
  return task_loss(changes_, model, hidden, targets, running_);
}

}  // namespace megatron::api
