#include "megatron/inference/model_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

EngineOptions ModelDrafter::options_of(const InferenceModel& model, const EngineOptions& options) {
  const TransformerConfig& config = model.config();
  return {.max_rows = options.max_rows,
          .max_step_tokens = options.max_step_tokens,
          .page_tokens = kPageTokens,
          .cache_tokens = num_cache_pages(config, options) * options.page_tokens +
                          options.max_rows * kPageTokens};
}

ModelDrafter::ModelDrafter(const InferenceModel& model, int64_t num_drafts,
                           const EngineOptions& options, int64_t vocab_size)
    : num_drafts_(num_drafts),
      most_tokens_(
          std::min(max_positions(model.config()),
                   num_cache_pages(model.config(), options_of(model, options)) * kPageTokens)),
      engine_(model, options_of(model, options)) {
  const int64_t theirs = model.config().counted_vocab_size();
  if (theirs != vocab_size) {
    throw ConfigError(
        fmt::format("--speculative-model has a vocabulary of {} tokens, and the model one of {}; "
                    "give a model with the same vocabulary",
                    theirs, vocab_size));
  }
}

std::vector<std::vector<int32_t>> ModelDrafter::propose(std::span<const DraftText> texts,
                                                        const Tensor& /*hidden*/) {
  std::vector<std::vector<int32_t>> drafts(texts.size());
  std::map<RequestId, size_t> text_of;
  for (size_t i = 0; i < texts.size(); ++i) {
    const DraftText& text = texts[i];
    const int64_t count = std::min(text.max_drafts, most_tokens_ - std::ssize(text.tokens));
    if (count <= 0) continue;
    Request request = {.prompt = {text.tokens.begin(), text.tokens.end()}, .max_new_tokens = count};
    request.sampling.top_k = 1;
    text_of[engine_.submit(std::move(request))] = i;
  }
  while (engine_.has_work()) {
    for (const RequestProgress& progress : engine_.step()) {
      if (progress.token) drafts[text_of.at(progress.id)].push_back(*progress.token);
    }
  }
  return drafts;
}

}  // namespace megatron
