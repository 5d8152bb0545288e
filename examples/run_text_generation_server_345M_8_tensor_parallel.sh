#!/usr/bin/env bash
# run_text_generation_server_345M.sh with each layer divided among GPUS_PER_NODE GPUs.
set -euo pipefail

ranks=${GPUS_PER_NODE:-8}
export LAUNCH="launch --nproc-per-node $ranks"
exec "$(dirname "$0")/run_text_generation_server_345M.sh" --tensor-model-parallel-size "$ranks" "$@"
