#!/usr/bin/env bash
# Fine-tunes a BERT on MNLI (or on QQP: TASK=QQP) on all GPUs of a host, and prints the accuracy on each
# validation file after each epoch. Flags behind the script's name replace its own:
#
#   TRAIN_DATA=MNLI/train.tsv VALID_DATA="MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv" \
#   PRETRAINED_CHECKPOINT=checkpoints/bert examples/finetune_mnli_distributed.sh
set -euo pipefail

megatron=${MEGATRON:-megatron}
task=${TASK:-MNLI}
checkpoints=${CHECKPOINT_PATH:-checkpoints/bert_$task}
read -ra train <<<"${TRAIN_DATA:-data/glue_data/MNLI/train.tsv}"
read -ra valid <<<"${VALID_DATA:-data/glue_data/MNLI/dev_matched.tsv \
data/glue_data/MNLI/dev_mismatched.tsv}"

flags=(
  --task "$task"
  --epochs 5
  --train-data "${train[@]}"
  --valid-data "${valid[@]}"
  --pretrained-checkpoint "${PRETRAINED_CHECKPOINT-checkpoints/bert}"
  --save "$checkpoints"
  --load "$checkpoints"
  --save-interval 500000
  --tokenizer-type BertWordPieceLowerCase
  --vocab-file "${VOCAB_FILE:-bert-vocab.txt}"
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 512
  --max-position-embeddings 512
  --micro-batch-size 8
  --lr 5.0e-5
  --lr-decay-style linear
  --lr-warmup-fraction 0.065
  --weight-decay 1.0e-1
  --log-interval 10
  --eval-interval 100
  --eval-iters 50
  --bf16
)

exec "$megatron" launch --nproc-per-node "${GPUS_PER_NODE:-8}" evaluate "${flags[@]}" "$@"
