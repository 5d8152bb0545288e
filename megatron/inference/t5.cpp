#include "megatron/inference/t5.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/stages.h"
#include "megatron/inference/t5_decoder.h"

namespace megatron {
namespace {

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
  T5Input input = encoder_input(model, texts);
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

namespace {

constexpr int64_t kMaxRows = 64;
constexpr double kNotDrawn = -1;

// Decodes requests, each a token a step.
class T5Decoding {
 public:
  T5Decoding(const T5Inference& inference, std::span<const T5Request> requests)
      : model_(inference.model),
        parallel_(inference.parallel),
        requests_(requests),
        decoder_(inference, std::min<int64_t>(static_cast<int64_t>(requests.size()), kMaxRows),
                 longest()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& decoding = requests[i].decoding;
      results_.push_back({.tokens = decoding.prompt,
                          .prompt_length = static_cast<int64_t>(decoding.prompt.size())});
      if (decoding.max_new_tokens > 0) waiting_.push_back(i);
    }
  }

  std::vector<Generation> run(const TokenSink& on_token) {
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < kMaxRows) admit();
      step(on_token);
    }
    return std::move(results_);
  }

 private:
  int64_t longest() const {
    int64_t most = 1;
    for (const T5Request& request : requests_) most = std::max(most, longest_of(request.decoding));
    return most;
  }

  void admit() {
    const size_t index = waiting_.front();
    waiting_.pop_front();
    running_.push_back(std::make_unique<T5Row>(decoder_.begin(requests_[index])));
    running_.back()->index = index;
  }

  // The token that follows those of a row, and its log-probability.
  std::pair<double, double> next_token(const T5Row& row, std::span<const float> logits) const {
    const Request& request = requests_[row.index].decoding;
    const int64_t known = model_.config().counted_vocab_size();
    logits = logits.first(static_cast<size_t>(known));
    if (std::ranges::any_of(logits, [](float x) { return std::isnan(x); })) {
      return {kNotDrawn, 0};
    }
    const auto next = static_cast<size_t>(row.cached);
    if (next < row.tokens.size()) return with_probability(logits, row.tokens[next]);
    std::vector<float> adjusted(
        logits.begin(), logits.begin() + (request.vocab_size > 0 ? request.vocab_size : known));
    const auto prompt_length = static_cast<int64_t>(request.prompt.size());
    const auto draw = static_cast<int64_t>(row.tokens.size()) - prompt_length;
    adjust_logits(adjusted, request.sampling, row.tokens, prompt_length);
    return with_probability(logits,
                            sample(adjusted, request.sampling, top_p_at(request.sampling, draw),
                                   sampling_uniform(request.seed, request.row, draw)));
  }
  static std::pair<double, double> with_probability(std::span<const float> logits, int64_t token) {
    return {static_cast<double>(token), log_probability(logits, token)};
  }

  void step(const TokenSink& on_token) {
    std::vector<T5Row*> running;
    for (const std::unique_ptr<T5Row>& row : running_) running.push_back(row.get());
    const Tensor logits = decoder_.next_logits(running);
    const auto rows = static_cast<int64_t>(running_.size());
    Tensor drawn({rows, 2}, DType::kFloat64, Stream{});
    for (int64_t i = 0; i < rows && is_head_rank(parallel_); ++i) {
      const auto width = static_cast<size_t>(logits.size(1));
      const auto at = static_cast<size_t>(i);
      const auto [token, probability] =
          next_token(*running_[at], logits.span<float>().subspan(at * width, width));
      drawn.span<double>()[2 * at] = token;
      drawn.span<double>()[2 * at + 1] = probability;
    }
    share_from_head(parallel_, drawn);
    for (size_t i = 0; i < running_.size(); ++i) {
      const auto pair = std::as_const(drawn).span<double>().subspan(2 * i, 2);
      if (pair[0] == kNotDrawn) throw Error(kNotANumber);
      append(*running_[i], static_cast<int32_t>(pair[0]), pair[1], on_token);
    }
    std::erase_if(running_, [&](const std::unique_ptr<T5Row>& row) {
      if (!is_finished(*row)) return false;
      decoder_.release(*row);
      return true;
    });
  }

  void append(T5Row& row, int32_t token, double probability, const TokenSink& on_token) {
    const Request& request = requests_[row.index].decoding;
    Generation& result = results_[row.index];
    if (request.return_log_probabilities) result.log_probabilities.push_back(probability);
    if (row.cached < static_cast<int64_t>(row.tokens.size())) return;  // a token of the prompt
    row.tokens.push_back(token);
    result.tokens.push_back(token);
    result.is_stopped = std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
    if (on_token) on_token(row.index, token);
  }
  bool is_finished(const T5Row& row) const {
    return results_[row.index].is_stopped ||
           static_cast<int64_t>(row.tokens.size()) >= longest_of(requests_[row.index].decoding);
  }

  const T5Model& model_;
  const ParallelContext& parallel_;
  std::span<const T5Request> requests_;
  T5Decoder decoder_;
  std::deque<size_t> waiting_;
  std::vector<std::unique_ptr<T5Row>> running_;
  std::vector<Generation> results_;
};

}  // namespace

std::vector<Generation> generate(const T5Inference& inference, std::span<const T5Request> requests,
                                 const TokenSink& on_token) {
  const NoGrad no_grad;
  for (const T5Request& request : requests) {
    check_request(inference.model, request);  // before any work
    invariant(!request.decoding.beams, "generate() has no beams");
  }
  if (requests.empty()) return {};
  return T5Decoding(inference, requests).run(on_token);
}

}  // namespace megatron
