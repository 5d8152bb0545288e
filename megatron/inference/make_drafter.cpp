#include "megatron/inference/make_drafter.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/inference/model_drafter.h"
#include "megatron/inference/multi_token_drafter.h"

namespace megatron {

const char* name_of(DraftMethod method) {
  switch (method) {
    case DraftMethod::kNgram:
      return "ngram";
    case DraftMethod::kMultiToken:
      return "mtp";
    case DraftMethod::kModel:
      return "draft_model";
  }
  throw InternalError("name_of: unknown method of speculative decoding");
}

std::shared_ptr<Drafter> make_drafter(const DraftOptions& drafts, const InferenceModel& model,
                                      const EngineOptions& engine) {
  const int64_t count = drafts.num_speculative_tokens;
  if (count == 0) return nullptr;
  if (model.gpt == nullptr) {
    throw ConfigError(
        fmt::format("--num-speculative-tokens {} is for a GPT, and the model is a {}; leave it out",
                    count, model.t5 != nullptr ? "T5" : "BERT"));
  }
  switch (drafts.speculative_method) {
    case DraftMethod::kNgram:
      return std::make_shared<NgramDrafter>(count, drafts.prompt_lookup_min,
                                            drafts.prompt_lookup_max);
    case DraftMethod::kMultiToken:
      return std::make_shared<MultiTokenDrafter>(
          model, count, num_cache_pages(model.config(), engine), engine.page_tokens);
    case DraftMethod::kModel:
      invariant(drafts.draft_model != nullptr, "the drafting model is loaded");
      return std::make_shared<ModelDrafter>(*drafts.draft_model, count, engine,
                                            model.config().counted_vocab_size());
  }
  throw InternalError("make_drafter: unknown method of speculative decoding");
}

}  // namespace megatron
