#!/usr/bin/env bash
# pretrain_t5.sh on all GPUs of NNODES hosts: each trains on its part of the batch. Start it on every
# host, with its own NODE_RANK.
set -euo pipefail

export LAUNCH="launch --nproc-per-node ${GPUS_PER_NODE:-8} --nnodes ${NNODES:-1} \
--node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} --master-port ${MASTER_PORT:-6000}"
exec "$(dirname "$0")/pretrain_t5.sh" --global-batch-size 64 --use-distributed-optimizer "$@"
