#include "megatron/inference/t5.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/page_pool.h"
#include "megatron/inference/stages.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/kv_cache.h"

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

namespace {

constexpr int64_t kMaxRows = 64;
constexpr int64_t kPageTokens = 16;
constexpr double kNotDrawn = -1;

// A request that is decoded.
struct Row {
  size_t index = 0;  // among the requests
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> pages = {};
  int64_t cached = 0;  // tokens whose keys and values are in the pages
  EncoderMemory memory = {};
};

int64_t longest_of(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
}

// Decodes requests, each a token a step.
class T5Decoding {
 public:
  T5Decoding(const T5Inference& inference, std::span<const T5Request> requests)
      : model_(inference.model),
        parallel_(inference.parallel),
        requests_(requests),
        longest_(longest()),
        pool_(std::min<int64_t>(static_cast<int64_t>(requests.size()), kMaxRows) *
                  ((longest_ + kPageTokens - 1) / kPageTokens),
              kPageTokens),
        cache_(model_.config(), whole_model(model_.config().decoder_num_layers),
               parallel_.tensor.size(), pool_.num_pages(), kPageTokens, model_.stream()),
        distance_bias_(model_.distance_bias(longest_)) {
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
    auto row = std::make_unique<Row>();
    row->index = waiting_.front();
    waiting_.pop_front();
    const T5Request& request = requests_[row->index];
    row->tokens = request.decoding.prompt;
    for (int64_t i = pool_.pages_for(longest_of(request.decoding)); i > 0; --i) {
      row->pages.push_back(pool_.allocate());
    }
    RandomState random(0);
    random.set_training(false);
    row->memory.output = model_.encode(input_of(model_, {.ids = {request.text}}), {}, random);
    running_.push_back(std::move(row));
  }

  // The logits of each row's next token, in fp32 on the host of rank 0: [rows, v].
  Tensor next_logits() {
    std::vector<int64_t> tokens;
    std::vector<int64_t> positions;
    std::vector<PagedRow> rows;
    CachedBatch cached{cache_};
    for (const std::unique_ptr<Row>& row : running_) {
      rows.push_back({static_cast<int64_t>(tokens.size()), 1, row->cached, row->pages});
      tokens.push_back(row->tokens[static_cast<size_t>(row->cached)]);
      positions.push_back(row->cached);
      cached.memories.push_back(&row->memory);
    }
    const TransformerConfig& c = model_.config();
    cached.rows = paged_batch(rows, kPageTokens, c.num_attention_heads / parallel_.tensor.size(),
                              c.kv_channels, model_.stream());
    const Shape shape = {1, static_cast<int64_t>(tokens.size())};
    const Variable hidden = model_.decode_cached(
        tensor_of(tokens, shape), tensor_of(positions, shape), distance_bias_, cached);
    const Tensor all = gathered_last_axis(model_.logits(hidden).data(), parallel_.tensor.group);
    const Tensor host = cast(all, DType::kFloat32).to(Stream{});
    return host.reshape({host.size(0), host.size(2)});
  }

  // The token that follows those of a row, and its log-probability.
  std::pair<double, double> next_token(const Row& row, std::span<const float> logits) const {
    const Request& request = requests_[row.index].decoding;
    const int64_t known = model_.config().counted_vocab_size();
    logits = logits.first(static_cast<size_t>(known));
    if (std::ranges::any_of(logits, [](float x) { return std::isnan(x); })) {
      return {kNotDrawn, 0};
    }
    const auto next = static_cast<size_t>(row.cached + 1);
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
    const Tensor logits = next_logits();
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
    std::erase_if(running_, [&](const std::unique_ptr<Row>& row) {
      if (!is_finished(*row)) return false;
      for (const int32_t page : row->pages) pool_.release(page);
      return true;
    });
  }

  void append(Row& row, int32_t token, double probability, const TokenSink& on_token) {
    const Request& request = requests_[row.index].decoding;
    Generation& result = results_[row.index];
    ++row.cached;
    if (request.return_log_probabilities) result.log_probabilities.push_back(probability);
    if (row.cached < static_cast<int64_t>(row.tokens.size())) return;  // a token of the prompt
    row.tokens.push_back(token);
    result.tokens.push_back(token);
    result.is_stopped = std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
    if (on_token) on_token(row.index, token);
  }
  bool is_finished(const Row& row) const {
    return results_[row.index].is_stopped ||
           static_cast<int64_t>(row.tokens.size()) >= longest_of(requests_[row.index].decoding);
  }

  const T5Model& model_;
  const ParallelContext& parallel_;
  std::span<const T5Request> requests_;
  int64_t longest_;
  PagePool pool_;
  KvCache cache_;
  Tensor distance_bias_;
  std::deque<size_t> waiting_;
  std::vector<std::unique_ptr<Row>> running_;
  std::vector<Generation> results_;
};

}  // namespace

std::vector<Generation> generate(const T5Inference& inference, std::span<const T5Request> requests,
                                 const TokenSink& on_token) {
  const NoGrad no_grad;
  const TransformerConfig& config = inference.model.config();
  for (const T5Request& request : requests) {
    input_of(inference.model, {.ids = {request.text}});  // before any work
    invariant(!request.decoding.prompt.empty() && !request.decoding.beams,
              "a decoder begins with a token and has no beams");
    check_ids(request.decoding.prompt, config.counted_vocab_size());
    check_length(longest_of(request.decoding), request.decoding.max_new_tokens, config);
  }
  if (requests.empty()) return {};
  return T5Decoding(inference, requests).run(on_token);
}

}  // namespace megatron
