#!/usr/bin/env bash
# Trains a GPT of 345 million parameters on one GPU. Flags behind the script's name replace its own:
#
#   DATA_PATH=my-gpt2_text_document examples/pretrain_gpt.sh --train-iters 1000
#
# LAUNCH holds the words of `megatron launch`; the scripts for several GPUs set it.
set -euo pipefail

megatron=${MEGATRON:-megatron}
read -ra data <<<"${DATA_PATH:-my-gpt2_text_document}"  # or: 0.3 first 0.7 second
vocab=${VOCAB_FILE:-gpt2-vocab.json}
merges=${MERGE_FILE:-gpt2-merges.txt}
checkpoints=${CHECKPOINT_PATH:-checkpoints/gpt2}
read -ra launch <<<"${LAUNCH:-}"

flags=(
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 1024
  --max-position-embeddings 1024
  --micro-batch-size 4
  --global-batch-size 8
  --lr 0.00015
  --min-lr 1.0e-5
  --lr-decay-style cosine
  --lr-decay-iters 320000
  --lr-warmup-fraction .01
  --train-iters 500000
  --weight-decay 1e-2
  --clip-grad 1.0
  --bf16
  --data-path "${data[@]}"
  --vocab-file "$vocab"
  --merge-file "$merges"
  --split "949,50,1"
  --log-interval 100
  --eval-interval 1000
  --eval-iters 10
  --save "$checkpoints"
  --load "$checkpoints"
  --save-interval 10000
)

exec "$megatron" "${launch[@]}" pretrain-gpt "${flags[@]}" "$@"
