#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megatron/interchange/checkpoint_source.h"
#include "megatron/settings/training_args.h"

// The settings that checkpoints and models store, as those of a run of this program. Which of them
// are the architecture, the rows of the flag table say.
namespace megatron {

// Those of a run with a Hugging Face model.
ArgMap settings_of(const HfModel& model);

// The ids that end a text of the model, each by itself: "eos_token_id", one id or a list. Empty if
// the settings name none.
std::vector<int64_t> end_tokens_of(const ArgMap& settings);
void set_end_tokens(ArgMap& settings, std::vector<int64_t> ids);

// Gives the settings of a run with a GPT the ids of special tokens that the source names
// ("bos_token_id", ...), and `end`, with which the run's documents end, among those that end
// a text.
void keep_special_ids(ArgMap& settings, const ArgMap& source, std::optional<int64_t> end);

// --use-checkpoint-args: takes the architecture from the source, with a warning for each flag whose
// value the source's replaces. REQUIRES: args are not resolved.
void take_architecture(TrainingArgs& args, const CheckpointSource& source);

// The given flags of the architecture whose values --use-checkpoint-args replaces by other ones of
// a source with such settings: one sentence each, without an end. REQUIRES: args are not resolved.
std::vector<std::string> replaced_flags(const TrainingArgs& args, const ArgMap& stored);

// Settings that must match the checkpoint's to go on with its run but do not (Flag::continued()):
// one sentence each.
std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& now);

// The settings of the architecture in which a Hugging Face model and a run differ: one sentence
// each. Both are resolved.
std::vector<std::string> contradictions(const TransformerConfig& theirs,
                                        const TransformerConfig& ours);

// The run that saved a checkpoint of that format, as its command line would give it; resolved, and
// for one rank. The tokenizer is left out when its files are not on this machine.
TrainingArgs described_run(CheckpointFormat format, const CheckpointContents& contents);

// The model that a source holds. `contents` are those of the source, perhaps changed.
TransformerConfig config_of(const CheckpointSource& source, const CheckpointContents& contents);

}  // namespace megatron
