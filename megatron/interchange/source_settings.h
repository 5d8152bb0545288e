#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/checkpoint_source.h"
#include "megatron/settings/training_args.h"

// The settings stored in checkpoints and models, as settings of a run of this program. The flag
// table marks those of the architecture.
namespace megatron {

// The settings of a run with a Hugging Face model.
ArgMap settings_of(const HfModel& model);

// The ids that each end a text of the model: "eos_token_id", one id or a list. Empty if the
// settings name none.
std::vector<int64_t> end_tokens_of(const ArgMap& settings);
void set_end_tokens(ArgMap& settings, std::vector<int64_t> ids);

// The model_type of the Hugging Face model that the training began with ("hf_model_type"); empty:
// none.
std::string hf_model_type_of(const ArgMap& settings);

// True for the settings that a run keeps of the model that it began with: the ids of special tokens
// and the model_type.
bool stays_with_model(std::string_view name);

// Adds these settings of the source to those of a run with a GPT, and `end`, the run's
// end-of-document id, to the ids that end a text.
void keep_special_ids(ArgMap& settings, const ArgMap& source, std::optional<int64_t> end);

// --use-checkpoint-args: takes the architecture from the source, with a warning for each flag whose
// value the source's replaces. REQUIRES: args are not resolved.
void take_architecture(TrainingArgs& args, const CheckpointSource& source);

// The given architecture flags whose values --use-checkpoint-args would override with the source's:
// one clause each, without a full stop. REQUIRES: args are not resolved.
std::vector<std::string> replaced_flags(const TrainingArgs& args, const ArgMap& stored);

// The settings that differ from the checkpoint's but must match to continue its run
// (Flag::continued()): one sentence each.
std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& now);

// The other architecture settings that differ from those of one of our checkpoints: one sentence
// each.
std::vector<std::string> changed_architecture(const ArgMap& saved, const ArgMap& now);

// The architecture settings in which a Hugging Face model and a run differ: one sentence each. Both
// are resolved.
std::vector<std::string> contradictions(const TransformerConfig& theirs,
                                        const TransformerConfig& ours);

// The configuration of the run that saved a checkpoint of that format, as if parsed from its
// command line; resolved, and for one rank. Omits the tokenizer if its files are not on this
// machine, and FP8, in which a training may compute, but not what reads its model.
TrainingArgs described_run(CheckpointFormat format, const CheckpointContents& contents);

// The model of a source. `contents` are the source's, possibly modified.
TransformerConfig config_of(const CheckpointSource& source, const CheckpointContents& contents);

// The settings of a run with weights of a dtype in this program's types; those of the tokenizer and
// of the model's origin (`stored`) even if no flag has them. A native checkpoint has them.
ArgMap native_args(const TrainingArgs& run, const ArgMap& stored, DType weights);

// The folder of the source's tokenizer, if its files are as in the folder of a Hugging Face model;
// else empty.
std::filesystem::path tokenizer_folder_of(const CheckpointSource& source);

}  // namespace megatron
