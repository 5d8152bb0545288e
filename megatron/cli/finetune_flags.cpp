#include "megatron/cli/finetune_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/core/number_text.h"

namespace megatron::cli {
namespace {

void add_text_flags(FlagTable& table, FinetuneFlags& f) {
  table.group("texts");
  table.add("--train_file", f.train_file,
            "Texts to train on: .txt (each line is a text), .csv, .json, .jsonl, or folders of "
            "them.");
  table.add("--validation_file", f.validation_file,
            "Texts to evaluate on; without it the first --validation_split_percentage of the "
            "training texts.");
  table.add_optional(
      "--dataset_name", f.dataset_name,
      "A folder of texts, or the name of a dataset in the cache of Hugging Face's hub, instead of "
      "--train_file. The name of a file begins with its split: train, validation, test.");
  table.add_optional("--dataset_config_name", f.dataset_config_name,
                     "A folder inside --dataset_name.");
  table.add("--validation_split_percentage", f.validation_split_percentage,
            "Percentage of the training texts that are held out for evaluation without "
            "--validation_file.");
  table.add_optional("--block_size,--max_length,--max_seq_length", f.block_size,
                     "Tokens of a training sample; default: the positions of the model, at most "
                     "1024, or 128 with --num_labels.");
  table.add(
      "--text_column", f.text_column,
      "Column of a .csv, or key of a .json, with the text; the first one if none has that name.");
  table.add_switch("--megatron_dataset_flag", f.megatron_dataset_flag,
                   "Train on indexed data (--data-path, --split) instead of texts, for "
                   "--max_train_steps or --train-iters.");
  table.add_optional(
      "--num_labels", f.num_labels,
      "Train a BERT as a classifier with this many outputs; 1: regression. Without it, and without "
      "a classification head in the model, a BERT is trained with masked language modeling.");
  table.add_optional("--text_pair_column", f.text_pair_column,
                     "Column of the second text of a pair to classify; default: sentence2 if the "
                     "first is sentence1.");
  table.add_optional("--label_column", f.label_column,
                     "Column of the labels: numbers or names of classes, numbers with --num_labels "
                     "1, or lists of zeros and ones; default: `label`.");
  table.add_optional("--mlm_probability", f.mlm_probability,
                     "Probability of masking a token, for a BERT: --mask-prob.");
  table.add_optional("--summary_column", f.summary_column,
                     "Column of the target texts of a T5, whose sources are in --text_column; "
                     "default: `summary`.");
  table.add_optional("--source_prefix", f.source_prefix,
                     "Prefix of each source text of a T5: \"summarize: \".");
  table.add_optional("--max_source_length", f.max_source_length,
                     "Maximum tokens of a source text of a T5, with its end token; default: 1024.");
  table.add_optional("--max_target_length", f.max_target_length,
                     "Maximum tokens of a target text of a T5, with its end token; default: 128.");
  table.add_off("--no_keep_linebreaks", f.keeps_linebreaks, "Drop the line ends of .txt files.");
}

void add_model_flags(FlagTable& table, FinetuneFlags& f) {
  table.group("model");
  table.add_optional("--model_name_or_path", f.model_name_or_path,
                     "Model to finetune: the folder of a Hugging Face model, or a checkpoint.");
  table.add_optional("--config_name", f.config_name,
                     "config.json, or its folder, of a model to train from random weights.");
  table.add_optional("--tokenizer_name", f.tokenizer_name,
                     "Folder of the tokenizer; default: that of the model.");
  table.add_entry("--model_type", FlagType::kText, f.without_effect, ArgValue(),
                  "config.json determines the type.");
  table.add_entry("--use_slow_tokenizer", FlagType::kSwitch, f.without_effect, false,
                  "Each tokenizer has one implementation.");
  table.add_entry("--trust_remote_code", FlagType::kText, f.without_effect, ArgValue(),
                  "Code from a model's folder is never loaded.");
  table.add_entry("--low_cpu_mem_usage", FlagType::kSwitch, f.without_effect, false,
                  "Weights are always read in place.");
}

void add_run_flags(FlagTable& table, FinetuneFlags& f) {
  table.group("training");
  table.add("--num_train_epochs", f.num_train_epochs, "Passes over the training texts.");
  table.add_optional("--max_train_steps", f.max_train_steps,
                     "Optimizer updates; replaces --num_train_epochs.");
  table.add("--per_device_train_batch_size", f.per_device_train_batch_size,
            "Samples that one model replica processes at once: --micro-batch-size.");
  table.add("--per_device_eval_batch_size", f.per_device_eval_batch_size,
            "Read for compatibility: evaluation uses the training's batches, and its result does "
            "not depend on them.");
  table.add("--gradient_accumulation_steps", f.gradient_accumulation_steps,
            "Micro-batches per optimizer update.");
  table.add("--learning_rate", f.learning_rate, "Peak learning rate: --lr.");
  table.add("--lr_scheduler_type", f.lr_scheduler_type,
            "linear, cosine, constant, constant_with_warmup or inverse_sqrt.");
  table.add("--num_warmup_steps", f.num_warmup_steps,
            "Optimizer updates of the learning-rate warm-up.");
  table.group("results");
  table.add_optional("--output_dir", f.output_dir,
                     "Folder of the results: a Hugging Face model with its tokenizer, "
                     "all_results.json, and checkpoints.");
  table.add_optional("--checkpointing_steps", f.checkpointing_steps,
                     "Optimizer updates between checkpoints, or `epoch`.");
  table.add_optional("--resume_from_checkpoint", f.resume_from_checkpoint,
                     "Checkpoint to continue from: an --output_dir, or its step_<n> or epoch_<n>.");
  table.add_switch("--merge_lora", f.merge_lora,
                   "With --lora-rank, merge the adapters into the weights of the result instead of "
                   "writing only the adapters, as PEFT does.");
  table.add_switch("--with_tracking", f.with_tracking,
                   "Log metrics to the trackers of --report_to.");
  table.add("--report_to", f.report_to,
            "Trackers, separated by commas: tensorboard, jsonl, csv, wandb, mlflow, or all.");
  table.add_optional("--logging_dir", f.logging_dir,
                     "Folder of the trackers; default: --output_dir.");
  table.add_entry("--preprocessing_num_workers", FlagType::kInt, f.without_effect, ArgValue(),
                  "Texts are read by one thread.");
  table.add_entry("--overwrite_cache", FlagType::kSwitch, f.without_effect, false,
                  "Nothing is cached.");
  table.add_entry("--push_to_hub", FlagType::kSwitch, f.without_effect, false, "", "a hub");
  table.add_entry("--hub_model_id", FlagType::kText, f.without_effect, ArgValue(), "", "a hub");
  table.add_entry("--hub_token", FlagType::kText, f.without_effect, ArgValue(), "", "a hub");
}

}  // namespace

FlagTable finetune_flag_table(FinetuneFlags& flags) {
  FlagTable table;
  add_text_flags(table, flags);
  add_model_flags(table, flags);
  add_run_flags(table, flags);
  return table;
}

std::vector<std::string> problems(const FinetuneFlags& f, ModelKind kind) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  const auto at_least = [&](const char* flag, int64_t value, int64_t least) {
    require(value >= least, fmt::format("{} {} must be at least {}", flag, value, least));
  };
  require(f.model_name_or_path.empty() || f.config_name.empty(),
          "--model_name_or_path and --config_name exclude each other: the first has weights, the "
          "second starts from random ones; keep one");
  require(
      !f.model_name_or_path.empty() || !f.config_name.empty() || !f.resume_from_checkpoint.empty(),
      "--model_name_or_path or --config_name is required: the folder of a model, or its "
      "config.json");
  struct Given {
    bool is_given;
    const char* flag;
  };
  const auto only_for = [&](ModelKind reader, std::initializer_list<Given> flags) {
    for (const Given& given : flags) {
      require(!given.is_given || kind == reader,
              fmt::format("{} is for a {}, and the model is a {}; remove it", given.flag,
                          name_of(reader), name_of(kind)));
    }
  };
  only_for(ModelKind::kBert, {{f.num_labels != 0, "--num_labels"},
                              {!f.text_pair_column.empty(), "--text_pair_column"},
                              {!f.label_column.empty(), "--label_column"},
                              {f.mlm_probability.has_value(), "--mlm_probability"}});
  only_for(ModelKind::kT5, {{!f.summary_column.empty(), "--summary_column"},
                            {!f.source_prefix.empty(), "--source_prefix"},
                            {f.max_source_length != 0, "--max_source_length"},
                            {f.max_target_length != 0, "--max_target_length"}});
  require(!is_encoder_decoder(kind) || f.block_size == 0,
          "--block_size has no meaning for a T5; give --max_source_length and --max_target_length");
  at_least("--num_labels", f.num_labels, 0);
  at_least("--max_source_length", f.max_source_length, 0);
  at_least("--max_target_length", f.max_target_length, 0);
  at_least("--block_size", f.block_size, 0);
  require(f.block_size != 1,
          "--block_size 1 must be at least 2: a block of one token has nothing to predict");
  at_least("--num_train_epochs", f.num_train_epochs, 1);
  at_least("--max_train_steps", f.max_train_steps, 0);
  at_least("--per_device_train_batch_size", f.per_device_train_batch_size, 1);
  at_least("--gradient_accumulation_steps", f.gradient_accumulation_steps, 1);
  at_least("--num_warmup_steps", f.num_warmup_steps, 0);
  require(f.validation_split_percentage >= 0 && f.validation_split_percentage < 100,
          fmt::format("--validation_split_percentage {} must be in [0, 99]",
                      f.validation_split_percentage));
  const std::string& steps = f.checkpointing_steps;
  require(steps.empty() || steps == "epoch" || integer_of(steps).value_or(0) >= 1,
          fmt::format("--checkpointing_steps {} must be `epoch` or a number of updates", steps));
  require(steps.empty() || !f.output_dir.empty(), "--checkpointing_steps needs --output_dir");
  return found;
}

std::vector<std::string> ineffective_flags(const FinetuneFlags& f) {
  std::vector<std::string> found;
  const auto warn_if = [&](bool holds, const char* dest, const char* why) {
    if (holds && f.given.contains(dest)) {
      found.push_back(fmt::format("--{} has no effect {}", dest, why));
    }
  };
  for (const char* dest : {"train_file", "validation_file", "dataset_name", "block_size",
                           "num_train_epochs", "text_column", "num_labels"}) {
    warn_if(f.megatron_dataset_flag, dest,
            "with --megatron_dataset_flag, which trains on --data-path");
  }
  warn_if(!f.train_file.empty(), "dataset_name", "beside --train_file");
  warn_if(f.dataset_name.empty(), "dataset_config_name", "without --dataset_name");
  warn_if(!f.validation_file.empty(), "validation_split_percentage", "beside --validation_file");
  warn_if(f.max_train_steps > 0, "num_train_epochs", "beside --max_train_steps");
  warn_if(!f.with_tracking, "report_to", "without --with_tracking");
  warn_if(!f.with_tracking, "logging_dir", "without --with_tracking");
  return found;
}

}  // namespace megatron::cli
