#!/usr/bin/env bash
# Trains a GPT-2 of 124 million parameters on a corpus of recipes/corpus/corpus.py --full, on one or
# several GPUs. Called again it goes on from its last checkpoint.
#
#   recipes/124m/run.sh CORPUS OUT [GPUS] [flags of pretrain-gpt]
#
#   recipes/124m/run.sh corpus out/bf16 4
#   recipes/124m/run.sh corpus out/fp8 1 --fp8-format hybrid
#   recipes/124m/run.sh corpus out/muon 1 --optimizer muon --lr 2e-3
#   recipes/124m/run.sh corpus out/experts 1 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1536 \
#     --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
#   recipes/124m/run.sh corpus out/short 1 --train-iters 200 --lr-decay-iters 200
#
# An iteration has 512 samples of 1024 tokens; 1,920 iterations are 1.007 billion tokens. MEGATRON
# names the program. OUT/initial, a folder of transformers, has the initial weights, for peer.py; a
# GPT-2 with experts is no model of transformers. Two experts of half the width take as many
# operations as the dense MLP.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
corpus=$1 out=$2
shift 2
gpus=1
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  gpus=$1
  shift
fi
megatron=${MEGATRON:-megatron}

program=("$megatron")
if [[ $gpus -gt 1 ]]; then program+=(launch --nproc-per-node "$gpus"); fi
flags=(
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024
  --max-position-embeddings 1024 --attention-dropout 0 --hidden-dropout 0 --bf16
  --micro-batch-size 32 --global-batch-size 512
  --train-iters 1920 --lr 6e-4 --min-lr 6e-5 --lr-decay-style cosine --lr-warmup-iters 100
  --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --seed 1234
  --train-data-path "$corpus/train_text_document" --valid-data-path "$corpus/held-out_text_document"
  --vocab-file "$corpus/tokenizer/vocab.json" --merge-file "$corpus/tokenizer/merges.txt"
  --data-cache-path "$out/cache" --eval-interval 100 --eval-iters 4)
if [[ $gpus -gt 1 ]]; then flags+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather); fi

mkdir -p "$out"
if [[ ! -d $out/initial && " $* " != *" --num-experts "* ]]; then
  # A rate of 0 leaves the weights as they were drawn.
  "$megatron" pretrain-gpt "${flags[@]}" "$@" --micro-batch-size 1 --global-batch-size 1 --train-iters 1 --lr 0 --min-lr 0 \
    --lr-warmup-iters 0 --lr-decay-iters 1 --eval-iters 0 --data-cache-path "$out/cache.initial" \
    --save "$out/initial.tmp" --save-format hf --save-interval 1 >"$out/initial.log"
  mv "$out/initial.tmp/iter_0000001" "$out/initial"
  rm -r "$out/initial.tmp" "$out/cache.initial"
fi
"${program[@]}" pretrain-gpt "${flags[@]}" --log-interval 1 --save "$out/checkpoint" --load "$out/checkpoint" \
  --save-interval 200 --keep-last 2 --async-save --metrics-jsonl "$out/metrics.jsonl" "$@"
