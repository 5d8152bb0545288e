#!/usr/bin/env bash
# After the training of recipes/smallest/run.sh or recipes/124m/run.sh: evaluation, low-rank
# adapters, quantized weights, a server of 200 clients, speculative decoding with a smaller model.
#
#   recipes/after.sh CORPUS OUT
#
# MEGATRON names the program, STEPS the steps (evaluate lora quantize serve speculate), WIKITEXT and
# LAMBADA the files of these tasks, without which they are left out. With PYTHON, a Python that has
# torch and transformers, their results are compared with transformers'. MG_DRAFT_ITERATIONS (200)
# is the length of the smaller model's training, MG_REQUESTS (1000) the number of requests.
set -euo pipefail

if [[ $# -ne 2 ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
corpus=$1 out=$2
megatron=${MEGATRON:-megatron}
here=$(dirname "$0")
model=$out/transformers
perplexity=(python3 "$here/perplexity.py" --megatron "$megatron")

evaluate() {
  local task file
  for task in WIKITEXT103 LAMBADA; do
    file=${LAMBADA:-}
    [[ $task == LAMBADA ]] || file=${WIKITEXT:-}
    [[ -n $file ]] || continue
    if [[ -n ${PYTHON:-} ]]; then
      "$PYTHON" "$here/compare_evaluate.py" "$model" "$task" "$file" --megatron "$megatron"
    else
      "$megatron" evaluate --load "$model" --task "$task" --valid-data "$file"
    fi
  done
}

lora() {
  python3 "$here/dialogues.py" "$out/dialogues" "$here"/../docs/*.md "$here"/../docs/*/*.md
  echo "before:"
  "${perplexity[@]}" "$model" "$out/dialogues/valid.jsonl"
  "$megatron" finetune --model_name_or_path "$model" --train_file "$out/dialogues/train.jsonl" \
    --validation_file "$out/dialogues/valid.jsonl" --block_size 256 --per_device_train_batch_size 8 --num_train_epochs 5 \
    --learning_rate 2e-3 --lora-rank 8 --lora-alpha 16 --lora-target-modules all-linear --output_dir "$out/lora" |
    tee "$out/lora.log" | grep '^epoch'
  echo "after:"
  "${perplexity[@]}" "$out/lora" "$out/dialogues/valid.jsonl"
}

quantize() {
  local kind weights
  for kind in books manuals docs code; do
    echo "$kind:"
    for weights in model int8 fp8; do
      "${perplexity[@]}" "$model" "$corpus/held-out/${kind}_text_document" --device cpu --inference-weights "$weights"
    done
  done
}

serve() {
  "$megatron" serve --load "$model" --port 0 >"$out/serve.log" 2>&1 &
  local server=$! url
  until url=$(sed -n 's/.* at \(http[^ ]*\) .*/\1/p' "$out/serve.log") && [[ -n $url ]]; do
    kill -0 "$server" || { cat "$out/serve.log" >&2; return 1; }
    sleep 0.1
  done
  python3 "$here/clients.py" "$url" "$corpus/held-out/docs.jsonl" --clients 200 --requests "${MG_REQUESTS:-1000}" || {
    kill "$server"
    return 1
  }
  kill "$server"
  wait "$server"
}

speculate() {
  # The smaller model has one layer. Both continue the beginnings of held-out documents.
  if [[ ! -e $out/draft ]]; then
    "$megatron" pretrain-gpt --num-layers 1 --hidden-size 128 --num-attention-heads 4 --seq-length 256 \
      --max-position-embeddings 256 --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 8 --global-batch-size 32 \
      --train-iters "${MG_DRAFT_ITERATIONS:-200}" --lr 4e-3 --min-lr 4e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
      --weight-decay 0.1 --adam-beta2 0.95 --eval-iters 0 --train-data-path "$corpus/train_text_document" \
      --vocab-file "$corpus/tokenizer/vocab.json" --merge-file "$corpus/tokenizer/merges.txt" \
      --data-cache-path "$out/cache" --save "$out/draft" --save-interval 1000 >"$out/draft.log"
  fi
  python3 - "$corpus" >"$out/prompts.jsonl" <<'PY'
import json, sys
for kind in ("books", "manuals", "docs", "code"):
    with open(f"{sys.argv[1]}/held-out/{kind}.jsonl", encoding="utf-8") as lines:
        for line, _ in zip(lines, range(5)):
            print(json.dumps({"text": json.loads(line)["text"][:200]}))
PY
  local generate=("$megatron" generate --load "$out/checkpoint" --prompt-file "$out/prompts.jsonl" --json --max-new-tokens 64)
  local draws words method drafts
  for draws in "--greedy" "--temperature 0.8 --seed 1"; do
    read -ra words <<<"$draws"
    "${generate[@]}" "${words[@]}" >"$out/texts.jsonl"
    for method in ngram draft_model; do
      drafts=(--num-speculative-tokens 3 --speculative-method "$method")
      [[ $method == ngram ]] || drafts+=(--speculative-model "$out/draft")
      echo "$draws, $method:"
      "${generate[@]}" "${words[@]}" "${drafts[@]}" >"$out/drafted.jsonl"
      if [[ $draws == --greedy ]]; then
        cmp "$out/texts.jsonl" "$out/drafted.jsonl"
      else
        python3 "$here/same_texts.py" "$out/texts.jsonl" "$out/drafted.jsonl"
      fi
    done
  done
}

if [[ ! -e $model ]]; then
  "$megatron" convert-checkpoint --load-dir "$out/checkpoint" --save-dir "$model" --saver hf --target_params_dtype fp32
fi
for step in ${STEPS:-evaluate lora quantize serve speculate}; do
  echo "== $step"
  "$step"
done
