#!/usr/bin/env bash
# Speed of preprocess-data with two workers: megatron.cpp and the Python loops people have, on the
# same file in one go. Checks that all write the same ids, then prints for each the MB/s of input
# by the clock and by CPU time (which a busy machine distorts less), and the ratios.
# Usage: bench/preprocess.sh corpus.jsonl vocab.json merges.txt [program]
# Needs python3 with venv; installs transformers into build/venv-preprocess.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
corpus=$(realpath "$1") vocab=$(realpath "$2") merges=$(realpath "$3")
cd "$(dirname "$0")/.."
program=$(realpath "${4:-build/cpu/bin/megatron}")
[ -x "$program" ] || { echo "$program is missing: run make build" >&2; exit 2; }
python=build/venv-preprocess/bin/python
if [ ! -x "$python" ] || ! "$python" -c 'import transformers' 2>/dev/null; then
  python3 -m venv build/venv-preprocess
  # The last series whose GPT2Tokenizer is the pure Python one.
  build/venv-preprocess/bin/pip install --quiet 'transformers==4.44.2'
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

timed megatron "$program" preprocess-data --input "$corpus" --output-prefix "$work/megatron" \
  --vocab-file "$vocab" --merge-file "$merges" --append-eod --workers 2
for kind in python rust; do
  timed "$kind" "$python" bench/preprocess_peer.py "$kind" "$corpus" "$vocab" "$merges" \
    "$work/$kind.bin"
  cmp "$work/megatron_text_document.bin" "$work/$kind.bin"
done

awk -v bytes="$(stat -c %s "$corpus")" '
  BEGIN { names["megatron"] = "megatron preprocess-data"
          names["python"] = "transformers GPT2Tokenizer (Python)"
          names["rust"] = "transformers GPT2TokenizerFast (Rust)" }
  { wall = bytes / $2 / 1e6; cpu = bytes / ($3 + $4) / 1e6
    if (NR == 1) { own_wall = wall; own_cpu = cpu }
    printf "%-38s %8.2f MB/s by the clock (ours %6.1f x)  %8.2f MB per CPU second (ours %6.1f x)\n",
      names[$1], wall, own_wall / wall, cpu, own_cpu / cpu }' "$work/times"
