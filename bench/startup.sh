#!/usr/bin/env bash
# Seconds from the start of the process to the end of the first training iteration: a GPT of 2 layers
# and hidden size 64 on the test corpus, with cached indices. Prints every run and the median; fails
# when the median is not below the limit.
# Usage: bench/startup.sh [runs] [limit in seconds]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-10}
limit=${2:-0.3}
program=${MEGATRON:-build/cpu/bin/megatron}
[ -x "$program" ] || { echo "$program is missing: run make build" >&2; exit 2; }

data=tests/golden/megatron/data
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

# Prints the seconds until the line of iteration 1.
first_iteration() {
  local started=$EPOCHREALTIME line
  while IFS= read -r line; do
    [[ $line == " iteration"* ]] || continue
    awk -v from="$started" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.4f\n", to - from }'
  done < <("$program" pretrain-gpt --num-layers 2 --hidden-size 64 --num-attention-heads 4 \
    --seq-length 64 --max-position-embeddings 64 --micro-batch-size 4 --lr 1e-3 --train-iters 1 \
    --log-interval 1 --eval-iters 0 --split 80,15,5 --data-path "$data/corpus_text_document" \
    --data-cache-path "$cache" --vocab-file "$data/vocab.json" --merge-file "$data/merges.txt")
}

first_iteration >/dev/null  # fills the cache of indices and that of the file system
for ((run = 0; run < runs; ++run)); do first_iteration; done | sort -n |
  awk -v limit="$limit" '{ seconds[NR] = $1; print "startup_seconds " $1 }
    END {
      middle = (seconds[int((NR + 1) / 2)] + seconds[int(NR / 2) + 1]) / 2
      printf "median of %d runs: %.4f s, limit %.1f s\n", NR, middle, limit
      exit !(NR > 0 && middle < limit)
    }'
