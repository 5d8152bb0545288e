#!/usr/bin/env bash
# Speed of preprocess-data: megatron.cpp with one and two workers, gigatoken with one and two
# threads, and with "loops" the Python loops people have, on the same file in one go. Checks that
# all give the same ids, then prints for each the MB/s of input by the clock and by CPU time (which
# a busy machine distorts less), and the ratio to ours with as many threads. Ours is a whole
# process, with its start and its files. gigatoken's start does not count, and its own passes write
# no files; the row "with files" adds what numpy takes to write the same .bin and .idx.
# Usage: bench/preprocess.sh corpus.jsonl {vocab.json merges.txt | tokenizer.json -} [program] [loops]
# A tokenizer.json must have <|endoftext|> and ids of 16 bits; there are no loops for it.
# Needs python3 with venv; installs its peers into build/venv-preprocess.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,11s/^# //p' "$0" >&2; exit 2; }
corpus=$(realpath "$1") vocab=$(realpath "$2") merges=$3
tokenizer=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$vocab")
if [ "$merges" != - ]; then
  merges=$(realpath "$merges")
  tokenizer=(--vocab-file "$vocab" --merge-file "$merges")
fi
cd "$(dirname "$0")/.."
program=$(realpath "${4:-build/cpu/bin/megatron}")
[ -x "$program" ] || { echo "$program is missing: run make build" >&2; exit 2; }
loops=${5:-}
python=build/venv-preprocess/bin/python
[ -x "$python" ] || python3 -m venv build/venv-preprocess
"$python" -c 'import gigatoken' 2>/dev/null || "$python" -m pip install --quiet gigatoken
if [ "$loops" = loops ] && ! "$python" -c 'import transformers' 2>/dev/null; then
  # The last series whose GPT2Tokenizer is the pure Python one.
  "$python" -m pip install --quiet 'transformers==4.44.2'
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT='%R %U %S'
# Runs a command and leaves "<name> <wall> <user> <system>" seconds.
timed() {
  local name=$1
  shift
  { time "$@" >"$work/$name.log" 2>&1 3>&-; } 2>"$work/$name.time" ||
    { cat "$work/$name.log" >&2; exit 1; }
  echo "$name $(cat "$work/$name.time")" >>"$work/times"
}

for workers in 1 2; do
  rm -f "$work"/megatron_*  # nobody waits for the removal of old files
  timed "megatron$workers" "$program" preprocess-data --input "$corpus" --append-eod \
    --output-prefix "$work/megatron" "${tokenizer[@]}" --workers "$workers"
  "$python" bench/preprocess_gigatoken.py "$workers" "$corpus" "$vocab" "$merges" \
    "$work/megatron_text_document" >>"$work/times"
done
for kind in python rust; do
  [ "$loops" = loops ] || break
  timed "$kind" "$python" bench/preprocess_peer.py "$kind" "$corpus" "$vocab" "$merges" \
    "$work/$kind.bin"
  cmp "$work/megatron_text_document.bin" "$work/$kind.bin"
done

awk -v bytes="$(stat -c %s "$corpus")" '
  BEGIN { names["megatron1"] = "preprocess-data, one worker"
          names["megatron2"] = "preprocess-data, two workers"
          names["gigatoken1-first"] = "gigatoken, one thread, first pass"
          names["gigatoken1-files"] = "gigatoken, one thread, first, with files"
          names["gigatoken1-again"] = "gigatoken, one thread, third pass"
          names["gigatoken2-first"] = "gigatoken, two threads, first pass"
          names["gigatoken2-files"] = "gigatoken, two threads, first, with files"
          names["gigatoken2-again"] = "gigatoken, two threads, third pass"
          names["python"] = "transformers GPT2Tokenizer (Python)"
          names["rust"] = "transformers GPT2TokenizerFast (Rust)" }
  { wall = bytes / $2 / 1e6; cpu = bytes / ($3 + $4) / 1e6
    if ($1 ~ /^megatron/) { own_wall = wall; own_cpu = cpu }
    printf "%-38s %8.2f MB/s by the clock (ours %6.2f x)  %8.2f MB per CPU second (ours %6.2f x)\n",
      names[$1], wall, own_wall / wall, cpu, own_cpu / cpu }' "$work/times"
