#!/usr/bin/env bash
# The whole way of a language model on two cores: a GPT of 7 million parameters learns the
# small corpus of recipes/corpus/corpus.py, is killed on the way and goes on with the same bits, is
# measured on held-out texts, writes, and becomes a model of transformers.
#
#   recipes/smallest/run.sh CORPUS OUT [flags of pretrain-gpt]
#
# MEGATRON names the program, MG_ITERATIONS (600) the length, a multiple of 6. With PYTHON, a Python
# that has torch and transformers, both programs' perplexities are compared.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
corpus=$1 out=$2
shift 2
megatron=${MEGATRON:-megatron}
iterations=${MG_ITERATIONS:-600}
readonly third=$((iterations / 3)) half=$((iterations / 2))
here=$(dirname "$0")

fail() {
  echo "run.sh: $1" >&2
  exit 1
}
[[ ! -e $out ]] || fail "$out exists; name a new folder"
mkdir -p "$out"

held_out=()
for kind in books manuals docs code; do held_out+=("$corpus/held-out/${kind}_text_document"); done
pretrain=("$megatron" pretrain-gpt
  --num-layers 6 --hidden-size 256 --num-attention-heads 8 --seq-length 256
  --max-position-embeddings 256 --attention-dropout 0 --hidden-dropout 0
  --micro-batch-size 8 --global-batch-size 32
  --train-iters "$iterations" --lr 2e-3 --min-lr 2e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05
  --weight-decay 0.1 --adam-beta2 0.95
  --train-data-path "$corpus/train_text_document" --valid-data-path "${held_out[@]}" --multiple-validation-sets
  --validation-set-names books manuals docs code --eval-interval "$iterations" --eval-iters 2
  --vocab-file "$corpus/tokenizer/vocab.json" --merge-file "$corpus/tokenizer/merges.txt"
  --data-cache-path "$out/cache" --log-interval 1 --metrics-jsonl "$out/metrics.jsonl"
  --save "$out/checkpoint" --load "$out/checkpoint" --save-interval "$third" "$@")

echo "== training, killed after iteration $half"
"${pretrain[@]}" >"$out/train.log" 2>&1 &
process=$!
until [[ -e $out/metrics.jsonl && $(grep -c '"lm loss":' "$out/metrics.jsonl") -ge $half ]]; do
  kill -0 "$process" 2>/dev/null || { tail -n 20 "$out/train.log" >&2; fail "the training ended early"; }
  sleep 0.1
done
kill -KILL "$process"
wait "$process" || true

echo "== training, resumed from its last checkpoint"
"${pretrain[@]}" >>"$out/train.log" 2>&1 || { tail -n 20 "$out/train.log" >&2; fail "the resumed training failed"; }
# Iterations between the checkpoint and the kill were computed twice, with the same bits.
sed -n 's/.*"iteration": \([0-9]*\),.*\("lm loss": [0-9.]*\), \("grad_norm": [0-9.]*\).*/\1 \2 \3/p' "$out/metrics.jsonl" |
  awk '{ seen[$1]++; if (seen[$1] == 2) { ++twice; if (first[$1] != $0) { print "differs: " first[$1] " | " $0; bad = 1 } } first[$1] = $0 }
    END { if (bad) exit 1
      print twice + 0 " iterations were computed twice, with equal losses and gradients"
      if (!twice) { print "killed too late: iterations are too fast for this script"; exit 1 } }' ||
  fail "no proof that the resumed run equals the killed one"

echo "== perplexities"
sed -n 's/.*"\([^"]* validation ppl\)": \([0-9.]*\).*/\1 \2/p' "$out/metrics.jsonl" | tail -n 4

echo "== what it writes"
for prompt in "The function returns" "In the beginning" "#include <"; do
  "$megatron" generate --load "$out/checkpoint" --prompt "$prompt" --max-new-tokens 60 --temperature 0.8 --top-k 40 --seed 1
done

echo "== a model of transformers"
"$megatron" convert-checkpoint --load-dir "$out/checkpoint" --save-dir "$out/transformers" --saver hf
if [[ -n ${PYTHON:-} ]]; then
  for kind in books manuals docs code; do
    "$PYTHON" "$here/../compare_transformers.py" "$out/transformers" "$corpus/held-out/${kind}_text_document" --megatron "$megatron"
  done
fi

"$megatron" report "$out/metrics.jsonl" --output "$out/report.html"
echo "the curves are in $out/report.html"
