#!/usr/bin/env bash
#SBATCH --nodes=128 --ntasks-per-node=8 --gpus-per-node=8 --exclusive --job-name=gpt3-175b
# Trains a GPT of 175 billion parameters on 1,024 GPUs under Slurm. What it needs can be known before:
#
#   SRUN= COMMAND="plan --world-size 1024" examples/pretrain_gpt3_175B.sh
set -euo pipefail

read -ra srun <<<"${SRUN-srun}"
read -ra command <<<"${COMMAND:-pretrain-gpt}"
read -ra data <<<"${DATA_PATH:-my-gpt2_text_document}"  # or: 0.3 first 0.7 second
checkpoints=${CHECKPOINT_PATH:-checkpoints/gpt3-175b}

flags=(
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --seq-length 2048
  --max-position-embeddings 2048
  --tensor-model-parallel-size 8
  --pipeline-model-parallel-size 16
  --sequence-parallel
  --use-distributed-optimizer
  --recompute-activations
  --micro-batch-size 1
  --global-batch-size 1536
  --rampup-batch-size 16 16 5859375
  --train-samples 146484375
  --lr 6.0e-5
  --min-lr 6.0e-6
  --lr-decay-style cosine
  --lr-decay-samples 126953125
  --lr-warmup-samples 183105
  --init-method-std 0.006
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --clip-grad 1.0
  --bf16
  --data-path "${data[@]}"
  --vocab-file "${VOCAB_FILE:-gpt2-vocab.json}"
  --merge-file "${MERGE_FILE:-gpt2-merges.txt}"
  --split "98,2,0"
  --log-interval 10
  --eval-interval 1000
  --eval-iters 40
  --save "$checkpoints"
  --load "$checkpoints"
  --save-interval 1000
  --tensorboard-dir "$checkpoints/tensorboard"
)

exec "${srun[@]}" "${MEGATRON:-megatron}" "${command[@]}" "${flags[@]}" "$@"
