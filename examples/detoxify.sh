#!/usr/bin/env bash
# Makes a GPT less toxic by training it on the least toxic half of what it writes itself, and measures how
# it continues prompts afterwards. A step whose result is there is left out, so a script that was stopped
# goes on. Flags behind the script's name go to the training:
#
#   CHECKPOINT_PATH=checkpoints/gpt2 PROMPTS=prompts.jsonl OUTPUT_PATH=detox \
#   SCORER="megatron corpus score-words --words words.tsv" examples/detoxify.sh --micro-batch-size 8
#
# PROMPTS has a line {"prompt": {"text": "...", "toxicity": 0.25}} for each prompt. SCORER is a program
# that reads lines {"id": 7, "text": "..."} and answers each with {"id": 7, "score": {"toxicity": 0.25}}.
set -euo pipefail

megatron=${MEGATRON:-megatron}
out=${OUTPUT_PATH:-detox}
checkpoint=${CHECKPOINT_PATH:-checkpoints/gpt2}
prompts=${PROMPTS:-prompts.jsonl}
scorer=${SCORER:?a command that scores texts}
seed=${SEED:-1234}
continuations=${CONTINUATIONS:-25}
read -ra launch <<<"${LAUNCH:-}"
read -ra launch_training <<<"${LAUNCH_TRAINING:-launch --nproc-per-node ${GPUS_PER_NODE:-1}}"

tokenizer=(
  --tokenizer-type GPT2BPETokenizer
  --vocab-file "${VOCAB_FILE:-gpt2-vocab.json}"
  --merge-file "${MERGE_FILE:-gpt2-merges.txt}"
)

# step FILE COMMAND ...: runs megatron COMMAND unless the file is there.
step() {
  local result=$1
  shift
  if [[ -e $result ]]; then
    echo "$result is there"
  else
    echo "\$ megatron $*"
    "$megatron" "$@"
  fi
}

mkdir -p "$out"
samples=$out/samples-$seed.jsonl
step "$samples" "${launch[@]}" generate --load "$checkpoint" "${tokenizer[@]}" \
  --num-samples "${NUM_SAMPLES:-50000}" --genfile "$samples" --out-seq-length "${SAMPLE_LENGTH:-1000}" \
  --temperature 1.0 --top-p 0.9 --seed "$seed"
step "$samples-annotated.jsonl" corpus annotate-toxicity --data-path "$samples" --scorer "$scorer"
step "$out/kept.jsonl" corpus keep-least-toxic --data-path "$samples-annotated.jsonl" \
  --out-path "$out/kept.jsonl" --keep-fraction "${KEEP_FRACTION:-0.5}" --seed "$seed"
step "$out/kept_text_document.idx" preprocess-data --input "$out/kept.jsonl" --output-prefix "$out/kept" \
  "${tokenizer[@]}" --append-eod
iterations=${TRAIN_ITERS:-78}
step "$out/checkpoint/latest_checkpointed_iteration.txt" "${launch_training[@]}" pretrain-gpt \
  --load "$checkpoint" --use-checkpoint-args --finetune --no-load-optim --no-load-rng \
  --save "$out/checkpoint" --save-interval "$iterations" "${tokenizer[@]}" \
  --data-path "$out/kept_text_document" --split 100,0,0 --train-iters "$iterations" \
  --micro-batch-size 4 --global-batch-size 512 --lr 2e-5 --lr-decay-style constant --weight-decay 0.1 \
  --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --log-interval 10 --eval-interval "$iterations" \
  --eval-iters 0 "$@"

# Each prompt as often as it is continued.
awk -v n="$continuations" '{ for (i = 0; i < n; ++i) print }' "$prompts" >"$out/prompts.jsonl"
step "$out/continuations.jsonl" "${launch[@]}" generate --load "$out/checkpoint" "${tokenizer[@]}" \
  --sample-input-file "$out/prompts.jsonl" --sample-output-file "$out/continuations.jsonl" \
  --out-seq-length 20 --temperature 1.0 --top-p 0.9 --seed "$seed"
exec "$megatron" corpus measure-toxicity --data-path "$out/continuations.jsonl" --prompt-path "$prompts" \
  --continuations "$continuations" --scorer "$scorer"
