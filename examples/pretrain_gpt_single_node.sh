#!/usr/bin/env bash
# pretrain_gpt.sh on GPUS_PER_NODE GPUs of this host, with recomputed activations: the largest batch.
set -euo pipefail

export LAUNCH="launch --nproc-per-node ${GPUS_PER_NODE:-8}"
exec "$(dirname "$0")/pretrain_gpt.sh" --global-batch-size 64 --use-distributed-optimizer \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "$@"
