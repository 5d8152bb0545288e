#!/usr/bin/env bash
# pretrain_t5_distributed.sh with each layer on two GPUs (tensor parallelism, with sequence
# parallelism), the encoder on one pipeline stage and the decoder on another.
set -euo pipefail

exec "$(dirname "$0")/pretrain_t5_distributed.sh" --tensor-model-parallel-size 2 \
  --sequence-parallel --pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 1 "$@"
