#!/usr/bin/env bash
# Tries a program where it was installed: trains a tokenizer and a small model and writes, in the folder /try.
#
#   bash scripts/try_program.sh PROGRAM
set -euo pipefail
megatron=$1
rm -rf /try && mkdir /try && cd /try
for i in $(seq 300); do echo "line $i of a text about rivers, bridges and the sea"; done >text.txt
sed 's/.*/{"text": "&"}/' text.txt >text.jsonl
$megatron train-tokenizer --input text.txt --output-dir tok --vocab-size 300 >log
$megatron preprocess-data --input text.jsonl --output-prefix text --append-eod \
  --tokenizer-type GPT2BPETokenizer --vocab-file tok/vocab.json --merge-file tok/merges.txt >>log
$megatron pretrain-gpt --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 \
  --max-position-embeddings 32 --micro-batch-size 4 --global-batch-size 4 --lr 1e-3 --train-iters 10 \
  --data-path text_text_document --vocab-file tok/vocab.json --merge-file tok/merges.txt --log-interval 10 \
  --save ckpt --save-interval 10 >>log 2>&1 || { tail log; exit 1; }
grep -o 'iteration *10/.*lm loss: [^|]*' log
$megatron generate --load ckpt --prompt 'line' --max-new-tokens 5
