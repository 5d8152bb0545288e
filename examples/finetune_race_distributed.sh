#!/usr/bin/env bash
# Fine-tunes a BERT on RACE, questions with four answers, on all GPUs of a host. Flags behind the
# script's name replace its own:
#
#   TRAIN_DATA=RACE/train/middle VALID_DATA="RACE/dev/middle RACE/dev/high" \
#   PRETRAINED_CHECKPOINT=checkpoints/bert examples/finetune_race_distributed.sh
set -euo pipefail

export TASK=RACE
export TRAIN_DATA=${TRAIN_DATA:-data/RACE/train/middle}
export VALID_DATA=${VALID_DATA:-data/RACE/dev/middle data/RACE/dev/high}
exec "$(dirname "$0")/finetune_mnli_distributed.sh" --epochs 3 --micro-batch-size 4 --lr 1.0e-5 \
  --lr-warmup-fraction 0.06 --clip-grad 1.0 --hidden-dropout 0.1 --attention-dropout 0.1 "$@"
