#pragma once

// The headers behind megatron.h, for tasks with a model, a batch or a device loss of their own and
// for libraries of --train-step (docs/library.md). They change with any version.

// A run: its config, and what loads, trains and saves.
#include "megatron/run/loaded_model.h"
#include "megatron/run/start.h"
#include "megatron/run/train_step.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/training_args.h"

// Models, and operators for losses and models of your own.
#include "megatron/inference/generate.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/nn/layers.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

// Data and tokenizers.
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split_datasets.h"
#include "megatron/tokenizers/tokenizer.h"

// Ranks, errors and log lines.
#include "megatron/comm/processes.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/parallel/data_parallel.h"
