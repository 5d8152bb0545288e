#!/usr/bin/env bash
# Trains a T5 of 220 million parameters on one GPU, on data of `preprocess-data --split-sentences`.
# Flags behind the script's name replace its own:
#
#   DATA_PATH=my-t5_text_sentence examples/pretrain_t5.sh --train-iters 1000
#
# LAUNCH holds the words of `megatron launch`; the scripts for several GPUs set it.
set -euo pipefail

megatron=${MEGATRON:-megatron}
read -ra data <<<"${DATA_PATH:-my-t5_text_sentence}"  # or: 0.3 first 0.7 second
vocab=${VOCAB_FILE:-bert-vocab.txt}
checkpoints=${CHECKPOINT_PATH:-checkpoints/t5}
read -ra launch <<<"${LAUNCH:-}"

flags=(
  --num-layers 12
  --hidden-size 768
  --num-attention-heads 12
  --kv-channels 64
  --ffn-hidden-size 3072
  --encoder-seq-length 512
  --decoder-seq-length 128
  --max-position-embeddings 512
  --micro-batch-size 16
  --global-batch-size 16
  --lr 0.0001
  --min-lr 0.00001
  --lr-decay-style linear
  --lr-decay-iters 1000000
  --lr-warmup-fraction .01
  --train-iters 1000000
  --weight-decay 1e-2
  --clip-grad 1.0
  --bf16
  --data-path "${data[@]}"
  --tokenizer-type BertWordPieceLowerCase
  --vocab-file "$vocab"
  --vocab-extra-ids 100
  --split "949,50,1"
  --log-interval 100
  --eval-interval 1000
  --eval-iters 10
  --save "$checkpoints"
  --load "$checkpoints"
  --save-interval 10000
)

exec "$megatron" "${launch[@]}" pretrain-t5 "${flags[@]}" "$@"
