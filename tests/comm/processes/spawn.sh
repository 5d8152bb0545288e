#!/usr/bin/env bash
# Starts processes as torchrun does, and ends all when one fails.
#
#   spawn.sh NUMBER PROGRAM [ARGUMENT ...]
set -uo pipefail

number=$1
shift
export WORLD_SIZE=$number LOCAL_WORLD_SIZE=$number MASTER_ADDR=localhost
export MASTER_PORT=$((20000 + $$ % 12000))  # below what the system hands out
export MEGATRON_SECRET=${MEGATRON_SECRET:-the secret of the tests}
processes=()
for ((rank = 0; rank < number; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  processes+=($!)
done
status=0
for ((rank = 0; rank < number; ++rank)); do
  wait -n
  code=$?
  if [[ $code -ne 0 && $status -eq 0 ]]; then
    status=$code
    sleep 1  # for the others to say what they saw
    kill -KILL "${processes[@]}" 2>/dev/null
  fi
done
exit "$status"
