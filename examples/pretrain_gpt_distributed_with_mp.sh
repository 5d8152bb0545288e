#!/usr/bin/env bash
# pretrain_gpt_distributed.sh with each layer on two GPUs (tensor parallelism, with sequence
# parallelism) and the layers in two stages (pipeline parallelism).
set -euo pipefail

exec "$(dirname "$0")/pretrain_gpt_distributed.sh" --tensor-model-parallel-size 2 \
  --sequence-parallel --pipeline-model-parallel-size 2 "$@"
