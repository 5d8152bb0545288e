#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/cli/finetune_flags.h"
#include "megatron/core/arg_map.h"
#include "megatron/settings/training_args.h"

// Translates the flags of `megatron finetune` to training settings. Flags of pretrain-gpt on the
// command line take precedence, with a warning.
namespace megatron::cli {

inline constexpr const char* kCheckpoints = "checkpoints";  // the folder in --output_dir

// The source of the model.
struct Origin {
  ArgMap settings;               // of the model, or of the run that saved it
  std::filesystem::path folder;  // may have the tokenizer
  bool is_hf = true;
  ArgMap special_ids = {};                    // pad_token_id, ..., as config.json states them
  std::vector<std::string> class_names = {};  // of a model with a head for classes
  bool has_weights = false;                   // else random initial weights
};

// The kind of the model that the flags name; a GPT if they name none. Throws what choose_model()
// throws.
ModelKind named_kind(const FinetuneFlags& flags);

// Chooses the weights, the architecture and the dropout. Throws ConfigError, IoError, FormatError.
Origin choose_model(const FinetuneFlags& flags, TrainingArgs& args);

// The tokenizer of --tokenizer_name, or else of the model, unless Megatron's flags name one. Throws
// ConfigError if there is none.
void choose_tokenizer(const FinetuneFlags& flags, const Origin& origin, TrainingArgs& args);

// The settings that do not depend on the data. `is_classifier`: a BERT learns labels. Throws
// ConfigError.
void apply_flags(const FinetuneFlags& flags, bool is_classifier, TrainingArgs& args);

// Final step, after all other settings: derives the remaining sizes of a --config_name, and adds a
// sentence for each setting that contradicts the model whose weights are trained.
void settle_architecture(const Origin& origin, TrainingArgs& args,
                         std::vector<std::string>& problems);

// The length of the training, in iterations.
struct Lengths {
  int64_t epoch_iters = 0;  // 0: the data have no epochs
  int64_t train_iters = 0;
  int64_t epochs = 0;
};

// The settings that depend on the numbers of samples. `replicas` ranks have the whole model each.
Lengths apply_samples(const FinetuneFlags& flags, int64_t num_train, int64_t num_valid,
                      int64_t replicas, TrainingArgs& args);
// The same for indexed data (--megatron_dataset_flag), which have no epochs.
Lengths apply_indexed_data(const FinetuneFlags& flags, int64_t replicas, TrainingArgs& args);

}  // namespace megatron::cli
