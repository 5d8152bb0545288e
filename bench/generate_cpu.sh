#!/usr/bin/env bash
# Generation by a GPT-2 124M on two CPU threads: megatron.cpp and transformers in one go,
# alternating, so that both meet the same machine. Prints a JSON line per run, then the best of the
# rounds: the ratio of the speeds, and the rate at which we read the weights against
# the rate of a copy.
# Usage: bench/generate_cpu.sh [rounds]        needs python3 with venv
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-2}
program=build/cpu/bin/megatron
python=${PYTHON:-build/venv/bin/python}
[ -x "$program" ] || { echo "$program is missing: run make build" >&2; exit 2; }
if [ ! -x "$python" ] || ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  python3 -m venv build/venv
  build/venv/bin/pip install --quiet torch transformers
  python=build/venv/bin/python
fi

export OMP_NUM_THREADS=2
results=build/bench_generate_cpu.jsonl
: >"$results"
for ((round = 0; round < rounds; ++round)); do
  for rows in 1 8; do
    for mode in fp32 bf16; do
      flag=$([ "$mode" = bf16 ] && echo --bf16 || true)
      "$program" bench --workload 124m --generate-rows "$rows" --prompt-tokens 16 --new-tokens 64 $flag |
        tee -a "$results"
      "$python" bench/generate_cpu_peer.py "$mode" "$rows" 16 64 | tee -a "$results"
    done
  done
done

"$python" - "$results" <<'PY'
import json, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
for rows in (1, 8):
    for ours, theirs in (("float32", "fp32"), ("bfloat16", "bf16")):
        mine = [r for r in runs if r["system"] == "megatron.cpp" and r["mode"] == ours and r["rows"] == rows]
        peer = [r for r in runs if r["system"] == "transformers" and r["mode"] == theirs and r["rows"] == rows]
        gap = min(r["between_tokens_ms_p50"] for r in mine)
        other = min(r["between_tokens_ms"] for r in peer)
        rate = peer[0]["weight_bytes"] / gap * 1e-6
        copy = max(r["copy_gb_per_second"] for r in peer)
        print(f"{ours}, {rows} texts: {gap:.1f} ms a token, {other / gap:.2f} x transformers ({other:.1f} ms); "
              f"weights at {rate:.1f} GB/s, {rate / copy:.2f} x a copy ({copy:.1f} GB/s)")
PY
