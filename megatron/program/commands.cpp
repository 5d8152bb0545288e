#include "megatron/program/commands.h"

#include "annex/accelerate/commands/accelerate.h"
#include "annex/accelerate/commands/config.h"
#include "annex/accelerate/commands/estimate_memory.h"
#include "annex/corpus/commands/corpus.h"
#include "annex/deepspeed/commands/deepspeed.h"
#include "annex/retro/commands/pretrain_retro.h"
#include "annex/retro/commands/retro_eval.h"
#include "annex/retro/commands/retro_finetune.h"
#include "annex/retro/commands/retro_generate.h"
#include "annex/retro/commands/retro_preprocess.h"
#include "megatron/cli/bench.h"
#include "megatron/cli/classify_text.h"
#include "megatron/cli/clients.h"
#include "megatron/cli/convert_checkpoint.h"
#include "megatron/cli/convert_megatron_checkpoint.h"
#include "megatron/cli/env.h"
#include "megatron/cli/evaluate.h"
#include "megatron/cli/fill_mask.h"
#include "megatron/cli/finetune.h"
#include "megatron/cli/generate.h"
#include "megatron/cli/inspect_checkpoint.h"
#include "megatron/cli/inspect_dataset.h"
#include "megatron/cli/launch.h"
#include "megatron/cli/merge_datasets.h"
#include "megatron/cli/merge_mp_partitions.h"
#include "megatron/cli/plan.h"
#include "megatron/cli/preprocess_data.h"
#include "megatron/cli/pretrain_bert.h"
#include "megatron/cli/pretrain_gpt.h"
#include "megatron/cli/pretrain_t5.h"
#include "megatron/cli/report.h"
#include "megatron/cli/score.h"
#include "megatron/cli/self_test.h"
#include "megatron/cli/serve.h"
#include "megatron/cli/train_tokenizer.h"
#include "megatron/core/parts.h"

namespace megatron::cli {
namespace {

template <bool kIsBuilt, auto kRun>
constexpr decltype(Command::run) if_built() {
  if constexpr (kIsBuilt) {
    return kRun;
  } else {
    return RunAlone(nullptr);
  }
}

constexpr Command kTable[] = {
    {"corpus", CommandGroup::kData, "clean, filter and de-duplicate text",
     "clean texts.json clean.json --vocab-file vocab.json --merge-file merges.txt",
     if_built<kHasCorpus, corpus>(), "MG_CORPUS"},
    {"train-tokenizer", CommandGroup::kData, "learn a vocabulary from text",
     "--input text.txt --output-dir tok --vocab-size 32000", train_tokenizer},
    {"preprocess-data", CommandGroup::kData, "tokenize text into a dataset",
     "--input text.jsonl --output-prefix text --vocab-file tok/vocab.json --merge-file "
     "tok/merges.txt --append-eod",
     preprocess_data},
    {"merge-datasets", CommandGroup::kData, "write several datasets as one",
     "--input datasets --output-prefix all", merge_datasets},
    {"inspect-dataset", CommandGroup::kData, "show the contents of a dataset",
     "text_text_document --documents 0", inspect_dataset},
    {"retro-preprocess", CommandGroup::kData,
     "retrieve neighbours for the samples of a training run", "",
     if_built<kHasRetro && kHasFaiss, retro_preprocess>(), kHasRetro ? "MG_FAISS" : "MG_RETRO"},
    {"pretrain-gpt", CommandGroup::kTraining, "train a GPT",
     "--num-layers 4 --hidden-size 192 --num-attention-heads 6 --seq-length 128 "
     "--max-position-embeddings 128 --micro-batch-size 8 --train-iters 100 --lr 1e-3 --data-path "
     "text_text_document --vocab-file tok/vocab.json --merge-file tok/merges.txt --save ckpt "
     "--save-interval 100",
     pretrain_gpt},
    {"pretrain-prefix-lm", CommandGroup::kTraining, "train a prefix language model", "",
     pretrain_prefix_lm},
    {"pretrain-bert", CommandGroup::kTraining, "train a BERT", "", pretrain_bert},
    {"pretrain-t5", CommandGroup::kTraining, "train a T5", "", pretrain_t5},
    {"pretrain-retro", CommandGroup::kTraining, "train a GPT that attends to retrieved texts", "",
     if_built<kHasRetro, pretrain_retro>(), "MG_RETRO"},
    {"retro-finetune", CommandGroup::kTraining, "tune a model on questions and answers", "",
     if_built<kHasRetro, retro_finetune>(), "MG_RETRO"},
    {"finetune", CommandGroup::kTraining, "fine-tune a model",
     "--model_name_or_path gpt2 --train_file texts.jsonl --output_dir out", finetune},
    {"report", CommandGroup::kTraining, "compare training runs on a web page", "metrics.jsonl",
     report_runs},
    {"retro-generate", CommandGroup::kInference, "answer questions with a tuned model", "",
     if_built<kHasRetro, retro_generate>(), "MG_RETRO"},
    {"retro-eval", CommandGroup::kInference, "score generated answers",
     "--pred answers.txt --gold test.json", if_built<kHasRetro, retro_eval>(), "MG_RETRO"},
    {"generate", CommandGroup::kInference, "continue texts with a trained model",
     "--load ckpt --prompt \"Once upon a time\" --max-new-tokens 40", generate_text},
    {"serve", CommandGroup::kInference, "serve a trained model over HTTP",
     "--load ckpt --port 5000", if_built<kHasServer, serve_model>(), "MG_SERVER"},
    {"chat", CommandGroup::kInference, "chat with a served model", "localhost:5000",
     if_built<kHasServer, chat>(), "MG_SERVER"},
    {"text-generation-cli", CommandGroup::kInference, "Megatron-LM's text generation client",
     "localhost:5000", if_built<kHasServer, text_generation_cli>(), "MG_SERVER"},
    {"score", CommandGroup::kInference, "compute log-probabilities of texts",
     "--load ckpt --input texts.jsonl", score_text},
    {"evaluate", CommandGroup::kInference,
     "measure a model on WikiText-103 or LAMBADA, tune a BERT on MNLI, QQP or RACE",
     "--task LAMBADA --valid-data lambada.jsonl --load ckpt", evaluate},
    {"fill-mask", CommandGroup::kInference, "predict masked words of texts",
     "--load bert --prompt \"The capital of France is [MASK].\"", fill_mask},
    {"classify", CommandGroup::kInference, "classify texts", "--load out --prompt \"What a film!\"",
     classify_text},
    {"inspect-checkpoint", CommandGroup::kCheckpoints, "show the contents of a checkpoint",
     "--load ckpt", inspect_checkpoint},
    {"convert-checkpoint", CommandGroup::kCheckpoints,
     "convert a checkpoint to another format or layout", "--load-dir ckpt --save-dir hf --saver hf",
     convert_checkpoint},
    {"convert-megatron-checkpoint", CommandGroup::kCheckpoints,
     "convert a Megatron-LM file to a transformers model", "release.zip",
     convert_megatron_checkpoint},
    {"merge-mp-partitions", CommandGroup::kCheckpoints,
     "merge the tensor-parallel ranks of a checkpoint", "--load ckpt --save merged",
     merge_mp_partitions},
    {"config", CommandGroup::kMachine, "write the configuration file for launch --config-file", "",
     if_built<kHasAccelerate, config>(), "MG_ACCELERATE"},
    {"launch", CommandGroup::kMachine, "run a command on several ranks",
     "--nproc-per-node 4 pretrain-gpt <flags of pretrain-gpt>", launch},
    {"accelerate", CommandGroup::kMachine, "the command line of Accelerate", "",
     if_built<kHasAccelerate, accelerate>(), "MG_ACCELERATE"},
    {"deepspeed", CommandGroup::kMachine, "the command line of DeepSpeed's launcher",
     "--num_gpus 2 pretrain_gpt.py <flags of pretrain-gpt>", if_built<kHasDeepSpeed, deepspeed>(),
     "MG_DEEPSPEED"},
    {"env", CommandGroup::kMachine, "describe the program and the machine", "", env},
    {"estimate-memory", CommandGroup::kMachine, "estimate the memory of a transformers model",
     "config.json --bf16 --tensor-model-parallel-size 2",
     if_built<kHasAccelerate, estimate_memory>(), "MG_ACCELERATE"},
    {"test", CommandGroup::kMachine, "test the ranks of a job", "", self_test},
    {"plan", CommandGroup::kMachine, "estimate memory and time of training",
     "--workload 345m --gpu h100 --bf16", plan},
    {"bench", CommandGroup::kMachine, "benchmark training or generation",
     "--workload tiny --device cpu --steps 3", bench},
};

}  // namespace

Commands commands() { return kTable; }

}  // namespace megatron::cli
