#pragma once

#include <memory>

#include "megatron/inference/engine.h"

namespace megatron {

// The drafter of an engine with these options; null without drafts. The model must outlive it.
// Throws ConfigError for a model that has no such drafts. Every rank of the model calls it.
std::shared_ptr<Drafter> make_drafter(const DraftOptions& drafts, const InferenceModel& model,
                                      const EngineOptions& engine);

}  // namespace megatron
