#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/beam_candidates.h"
#include "megatron/inference/stages.h"
#include "megatron/inference/t5_decoder.h"

namespace megatron {
namespace {

constexpr int64_t kNoBeam = -1;     // fewer candidates than there is place for
constexpr int64_t kNoNumbers = -2;  // the logits are not numbers

// A beam search over the decoder of a T5.
class T5Beams {
 public:
  T5Beams(const T5Inference& inference, const T5Request& request)
      : inference_(inference),
        decoding_(request.decoding),
        beams_(*decoding_.beams, decoding_.stop_tokens, decoding_.max_new_tokens),
        decoder_(inference, decoding_.beams->width, longest_of(decoding_)),
        rows_{decoder_.begin(request)} {}

  std::vector<Hypothesis> run() {
    while (rows_[0].knows_next()) next_logits();  // the prompt
    while (!beams_.is_done()) follow(beams_.advance(candidates(next_logits())));
    return beams_.take_result();
  }

 private:
  Tensor next_logits() {
    std::vector<T5Row*> rows;
    for (T5Row& row : rows_) rows.push_back(&row);
    return decoder_.next_logits(rows);
  }

  // Those that rank 0 finds.
  std::vector<BeamCandidate> candidates(const Tensor& logits) const {
    const int64_t count = beams_.num_candidates();
    Tensor numbers({count, 3}, DType::kFloat64, Stream{});
    if (is_head_rank(inference_.parallel)) {
      const auto values = numbers.span<double>();
      std::ranges::fill(values, kNoBeam);
      const std::vector<BeamCandidate> found = best(logits);
      if (found.empty()) values[0] = kNoNumbers;
      for (size_t i = 0; i < found.size(); ++i) {
        values[3 * i] = static_cast<double>(found[i].beam);
        values[3 * i + 1] = found[i].token;
        values[3 * i + 2] = found[i].log_probability;
      }
    }
    share_from_head(inference_.parallel, numbers);
    const auto values = std::as_const(numbers).span<double>();
    if (values[0] == kNoNumbers) throw Error(kNotANumber);
    std::vector<BeamCandidate> result;
    for (size_t i = 0; i + 2 < values.size() && values[i] >= 0; i += 3) {
      result.push_back(
          {static_cast<int64_t>(values[i]), static_cast<int32_t>(values[i + 1]), values[i + 2]});
    }
    return result;
  }
  // None if a logit is not a number.
  std::vector<BeamCandidate> best(const Tensor& logits) const {
    const int64_t known = inference_.model.config().counted_vocab_size();
    const auto width = static_cast<size_t>(logits.size(1));
    std::vector<std::span<const float>> rows;
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows.push_back(logits.span<float>().subspan(i * width, static_cast<size_t>(known)));
      if (std::ranges::any_of(rows.back(), [](float x) { return std::isnan(x); })) return {};
    }
    return best_candidates(beams_, rows, decoding_.vocab_size > 0 ? decoding_.vocab_size : known);
  }

  // Each new beam goes on with the row of its parent; the first child takes it, the others copy it.
  void follow(const std::vector<int64_t>& parents) {
    std::vector<bool> goes_on(rows_.size(), false);
    for (const int64_t parent : parents) goes_on[static_cast<size_t>(parent)] = true;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!goes_on[i]) decoder_.release(rows_[i]);
    }
    std::vector<T5Row> next;
    for (size_t i = 0; i < parents.size(); ++i) {
      const auto parent = static_cast<size_t>(parents[i]);
      next.push_back(goes_on[parent] ? rows_[parent] : decoder_.copy_of(rows_[parent]));
      goes_on[parent] = false;  // taken
      next.back().tokens.push_back(beams_.last_token(static_cast<int64_t>(i)));
    }
    rows_ = std::move(next);
  }

  const T5Inference& inference_;
  const Request& decoding_;
  BeamSearch beams_;
  T5Decoder decoder_;
  std::vector<T5Row> rows_;  // by beam
};

}  // namespace

std::vector<Hypothesis> search_beams(const T5Inference& inference, const T5Request& request) {
  const NoGrad no_grad;
  check_request(inference.model, request);
  invariant(request.decoding.beams && request.decoding.max_new_tokens > 0,
            "a beam search has beams and new tokens");
  std::vector<Hypothesis> result = T5Beams(inference, request).run();
  for (Hypothesis& hypothesis : result) {
    const std::vector<int32_t>& prompt = request.decoding.prompt;
    hypothesis.tokens.insert(hypothesis.tokens.begin(), prompt.begin(), prompt.end());
  }
  return result;
}

}  // namespace megatron
