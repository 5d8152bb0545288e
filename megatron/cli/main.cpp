#include "megatron/cli/accelerate.h"
#include "megatron/cli/clients.h"
#include "megatron/cli/command.h"
#include "megatron/cli/config.h"
#include "megatron/cli/convert_checkpoint.h"
#include "megatron/cli/convert_megatron_checkpoint.h"
#include "megatron/cli/corpus.h"
#include "megatron/cli/deepspeed.h"
#include "megatron/cli/env.h"
#include "megatron/cli/estimate_memory.h"
#include "megatron/cli/inspect_checkpoint.h"
#include "megatron/cli/inspect_dataset.h"
#include "megatron/cli/launch.h"
#include "megatron/cli/merge_datasets.h"
#include "megatron/cli/merge_mp_partitions.h"
#include "megatron/cli/plan.h"
#include "megatron/cli/preprocess_data.h"
#include "megatron/cli/ranks.h"
#include "megatron/cli/retro_eval.h"
#include "megatron/cli/train_tokenizer.h"
#include "megatron/core/terminate.h"

namespace {

using Initialiser = void (*)(int, char**, char**);

void explain_early(int, char**, char**) { megatron::explain_uncaught_exceptions(); }

// Before the initialisers of libraries, which may run out of memory as well.
[[gnu::section(".preinit_array"), gnu::used]] const Initialiser kExplainEarly = explain_early;

}  // namespace

int main(int argc, char** argv) {
  namespace cli = megatron::cli;
  const cli::Command commands[] = {
      {"corpus", "clean, filter and de-duplicate text", cli::corpus},
      {"train-tokenizer", "learn a vocabulary from text", cli::train_tokenizer},
      {"preprocess-data", "turn text into a dataset of token ids", cli::preprocess_data},
      {"merge-datasets", "write several datasets as one", cli::merge_datasets},
      {"inspect-dataset", "show what a dataset holds", cli::inspect_dataset},
      {"pretrain-gpt", "train a GPT",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "pretrain-gpt");
       }},
      {"pretrain-prefix-lm", "train a GPT whose prefixes are read in both directions",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "pretrain-prefix-lm");
       }},
      {"pretrain-bert", "train a BERT",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "pretrain-bert");
       }},
      {"pretrain-t5", "train a T5",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "pretrain-t5");
       }},
      {"retro-preprocess", "find neighbours of the samples of a training",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "retro-preprocess");
       }},
      {"pretrain-retro", "train a GPT that attends to retrieved texts",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "pretrain-retro");
       }},
      {"retro-finetune", "tune a model on questions with answers",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "retro-finetune");
       }},
      {"retro-generate", "answer questions with a tuned model",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "retro-generate");
       }},
      {"retro-eval", "score answers that a model wrote", cli::retro_eval},
      {"finetune", "train a model further on texts",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "finetune"); }},
      {"config", "write the file that launch --config-file reads", cli::config},
      {"launch", "run a command on several ranks", cli::launch},
      {"accelerate", "the command line of Accelerate", cli::accelerate},
      {"deepspeed", "the command line of DeepSpeed's launcher", cli::deepspeed},
      {"env", "describe the program and the machine", cli::env},
      {"estimate-memory", "show the memory of a model of transformers", cli::estimate_memory},
      {"test", "check that the ranks of a job work together",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "test"); }},
      {"plan", "show the memory and time that training will take", cli::plan},
      {"generate", "continue texts with a trained model",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "generate"); }},
      {"serve", "answer HTTP requests with a trained model",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "serve"); }},
      {"chat", "talk with a model that is served", cli::chat},
      {"text-generation-cli", "ask a server for texts, as Megatron-LM's client does",
       cli::text_generation_cli},
      {"score", "show the probability of texts under a model",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "score"); }},
      {"evaluate", "measure a model on WikiText-103 or LAMBADA, tune a BERT on MNLI, QQP or RACE",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "evaluate"); }},
      {"fill-mask", "tell which words fit the gaps of texts",
       [](std::span<const std::string> words) {
         return cli::run_where_placed(words, "fill-mask");
       }},
      {"classify", "tell the classes of texts",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "classify"); }},
      {"inspect-checkpoint", "show what a checkpoint holds", cli::inspect_checkpoint},
      {"convert-checkpoint", "write a checkpoint in another format or layout",
       cli::convert_checkpoint},
      {"convert-megatron-checkpoint", "write a model of transformers beside a file of Megatron-LM",
       cli::convert_megatron_checkpoint},
      {"merge-mp-partitions", "write a checkpoint for one tensor-parallel rank",
       cli::merge_mp_partitions},
      {"bench", "time training or generation on this machine",
       [](std::span<const std::string> words) { return cli::run_where_placed(words, "bench"); }},
  };
  return cli::run_program(argc, argv, commands);
}
