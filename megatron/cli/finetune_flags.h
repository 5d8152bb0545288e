#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "megatron/settings/flag_table.h"
#include "megatron/transformer/config.h"

namespace megatron::cli {

// The flags of `megatron finetune` that transformers' example scripts have: those for language
// models (run_clm, run_mlm), for classification (run_glue) and for summaries (run_summarization).
// The command also takes all flags of the training command of its model.
struct FinetuneFlags {
  // Texts.
  std::vector<std::string> train_file;
  std::vector<std::string> validation_file;
  std::string dataset_name;
  std::string dataset_config_name;
  int64_t validation_split_percentage = 5;
  int64_t block_size = 0;  // 0: that of the model, at most 1024
  std::string text_column = "text";
  // BERT.
  int64_t num_labels = 0;        // 0: as the model, or masked language modeling if it has none
  std::string text_pair_column;  // empty: sentence2, if the text's is sentence1
  std::string label_column;      // empty: label
  std::optional<double> mlm_probability;
  // T5.
  std::string summary_column;  // empty: summary
  std::string source_prefix;
  int64_t max_source_length = 0;  // 0: that of the model, at most 1024
  int64_t max_target_length = 0;  // 0: 128
  bool keeps_linebreaks = true;
  bool megatron_dataset_flag = false;

  // The model and its tokenizer.
  std::string model_name_or_path;
  std::string config_name;
  std::string tokenizer_name;

  // Training.
  int64_t num_train_epochs = 3;
  int64_t max_train_steps = 0;  // 0: from num_train_epochs
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";
  int64_t num_warmup_steps = 0;

  // Results.
  std::string output_dir;  // empty: nothing is saved
  std::string checkpointing_steps;
  std::string resume_from_checkpoint;
  bool merge_lora = false;
  bool with_tracking = false;
  std::string report_to = "all";
  std::string logging_dir;  // empty: output_dir

  ArgMap without_effect;
  std::set<std::string> given;  // the names of the fields that the command line sets
};

// The rows of the flags, bound to `flags`, which must outlive the table.
FlagTable finetune_flag_table(FinetuneFlags& flags);

// Everything wrong with the values for a model of this kind, one sentence each.
std::vector<std::string> problems(const FinetuneFlags& flags, ModelKind kind);

// Flags without effect in combination with others, one sentence each.
std::vector<std::string> ineffective_flags(const FinetuneFlags& flags);

}  // namespace megatron::cli
