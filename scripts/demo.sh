#!/usr/bin/env bash
# From nothing to a language model: installs missing packages, builds, makes a corpus, trains a
# tokenizer and a small GPT on this machine's CPU, and generates text.
#
#   scripts/demo.sh             the King James Bible, from Debian's package bible-kjv
#   scripts/demo.sh FILE        your own text, UTF-8; blank lines separate its parts
#
# Trains for about MG_DEMO_MINUTES (5) minutes after the build. MG_DEMO_QUICK=1 runs the same steps
# in seconds, with a model too small to write well. All results are in build/demo.
set -euo pipefail
cd_from=$PWD
cd "$(dirname "$0")/.."

readonly out=build/demo
readonly quick=${MG_DEMO_QUICK:-0}
readonly minutes=${MG_DEMO_MINUTES:-5}

fail() {
  echo "demo: $1" >&2
  exit 1
}

# Prints a command as a user would type it, then runs it.
run() {
  local word line='$'
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_./,:=+-]+$ ]]; then line+=" $word"; else line+=" ${word@Q}"; fi
  done
  printf '\n%s\n' "$line"
  "$@"
}

step() { printf '\n== %s\n' "$1"; }

own_text=${1:-}
[[ -z $own_text || $own_text == /* ]] || own_text=$cd_from/$own_text
if [[ -n $own_text && ! -s $own_text ]]; then
  fail "$own_text is missing or empty; give a text file of at least 100 kB, or none"
fi

step "Build"
scripts/bootstrap.sh
mkdir -p build
cmake --preset cpu >build/cpu.configure.log 2>&1 ||
  { cat build/cpu.configure.log; fail "cmake failed; its output is above"; }
cmake --build build/cpu --parallel "${MG_JOBS:-$(nproc)}" --target megatron
readonly megatron=build/cpu/bin/megatron

step "Corpus"
rm -rf "$out"
mkdir -p "$out"
if [[ -n $own_text ]]; then
  # Drops bytes that are not UTF-8 and control characters other than the line feed.
  iconv -f UTF-8 -t UTF-8 -c "$own_text" | tr -d '\000-\010\013-\037' >"$out/corpus.txt" || true
else
  scripts/bootstrap.sh bible-kjv ||
    fail "without the package bible-kjv, give a text of your own: scripts/demo.sh FILE"
  # "Ge1:1 In the beginning ..." becomes one verse a line, and a blank line after each chapter.
  bible -f 'gen1:1-rev22:21' | awk '
    { chapter = $1; sub(/:.*/, "", chapter) }
    NR > 1 && chapter != last { print "" }
    { last = chapter; sub(/^[^ ]+ /, ""); print }' >"$out/corpus.txt"
fi
if [[ $quick == 1 ]]; then
  head -n 2000 "$out/corpus.txt" >"$out/start.txt"
  mv "$out/start.txt" "$out/corpus.txt"
fi
awk -f scripts/text_to_jsonl.awk "$out/corpus.txt" >"$out/corpus.jsonl"
echo "$(wc -c <"$out/corpus.txt") bytes of text in $(wc -l <"$out/corpus.jsonl") documents"

if [[ $quick == 1 ]]; then
  vocab_size=512
  model=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64
    --max-position-embeddings 64)
  batch=(--micro-batch-size 2 --global-batch-size 8)
  new_tokens=20
else
  vocab_size=2048
  model=(--num-layers 4 --hidden-size 192 --num-attention-heads 6 --seq-length 128
    --max-position-embeddings 128)
  batch=(--micro-batch-size 4 --global-batch-size 16)
  new_tokens=100
fi
model+=(--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
  --attention-dropout 0 --hidden-dropout 0)

step "Tokenizer: a byte-level BPE of $vocab_size tokens"
run "$megatron" train-tokenizer --input "$out/corpus.txt" --output-dir "$out/tokenizer" \
  --vocab-size "$vocab_size"
tokenizer=(--tokenizer-type GPT2BPETokenizer --vocab-file "$out/tokenizer/vocab.json"
  --merge-file "$out/tokenizer/merges.txt")

step "Token ids"
run "$megatron" preprocess-data --input "$out/corpus.jsonl" --output-prefix "$out/corpus" \
  "${tokenizer[@]}" --append-eod --workers 2

step "Training: four ranks, the layers in two stages, each layer shared by two"
pretrain=("$megatron" launch --nproc-per-node 4 pretrain-gpt
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
  "${model[@]}" "${batch[@]}" "${tokenizer[@]}"
  --data-path "$out/corpus_text_document" --split "97,3,0" --seed 1234
  --lr 2e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05
  --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0)
if [[ $quick == 1 ]]; then
  iterations=30
else
  # As many iterations as fit in the time, from the median time of a short trial.
  "${pretrain[@]}" --train-iters 12 --log-interval 1 --eval-iters 0 >"$out/trial.log" 2>&1 ||
    { tail -n 20 "$out/trial.log"; fail "the trial run failed; its last lines are above"; }
  iteration_ms=$(sed -n 's/.*elapsed time per iteration (ms): *\([0-9.]*\).*/\1/p' "$out/trial.log" |
    tail -n 9 | sort -n | sed -n 5p)
  [[ -n $iteration_ms ]] || fail "$out/trial.log has no 'elapsed time per iteration'"
  iterations=$(awk -v ms="$iteration_ms" -v minutes="$minutes" '
    BEGIN {
      n = int(minutes * 60000 / ms / 10) * 10
      print (n < 100 ? 100 : (n > 4000 ? 4000 : n))
    }')
  echo "One iteration takes $iteration_ms ms here, so $iterations iterations."
fi
run "${pretrain[@]}" --train-iters "$iterations" \
  --log-interval $((iterations < 200 ? 5 : iterations / 40)) \
  --eval-interval "$iterations" --eval-iters 10 --exit-duration-in-mins $((minutes + 2)) \
  --save "$out/checkpoint" --save-interval "$iterations" --metrics-jsonl "$out/metrics.jsonl"

step "Loss"
awk -f scripts/plot_loss.awk "$out/metrics.jsonl"

step "What it writes"
if [[ -z $own_text ]]; then
  prompts=("And it came to pass" "In the beginning" "Blessed is the man")
else
  # The first four words of three paragraphs, spread over the text.
  mapfile -t prompts < <(awk 'NF >= 6 { lines[++n] = $1 " " $2 " " $3 " " $4 }
    END { for (i = 0; i < 3 && n > 0; ++i) print lines[1 + int(i * n / 3)] }' "$out/corpus.txt")
fi
for prompt in "${prompts[@]}"; do
  run "$megatron" generate --load "$out/checkpoint" --prompt "$prompt" \
    --max-new-tokens "$new_tokens" --temperature 0.8 --top-k 40 --seed 1
done

printf '\nThe corpus, the tokenizer, the checkpoint and the metrics are in %s. Continue writing with\n' "$out"
printf '  %s generate --load %s --prompt "..."\n' "$megatron" "$out/checkpoint"
