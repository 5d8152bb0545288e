#!/usr/bin/env bash
# Training speed and memory of a GPT-2 124M (12 layers, hidden 768, 12 heads, sequence 256,
# micro-batch 4) on two CPU threads: megatron.cpp and PyTorch, eager and compiled, in one go,
# alternating, so that both meet the same machine. Prints a JSON line per run and the ratios of the medians.
# Usage: bench/train_cpu.sh [rounds] [steps]        needs python3 with venv
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-2}
steps=${2:-6}
program=build/cpu/bin/megatron
python=build/venv/bin/python
[ -x "$program" ] || { echo "$program is missing: run make build" >&2; exit 2; }
if [ ! -x "$python" ] || ! "$python" -c 'import torch' 2>/dev/null; then
  python3 -m venv build/venv
  build/venv/bin/pip install --quiet torch numpy
fi

export OMP_NUM_THREADS=2
results=build/bench_train_cpu.jsonl
: >"$results"
for ((round = 0; round < rounds; ++round)); do
  "$program" bench --workload 124m --steps "$steps" | tee -a "$results"
  for mode in fp32 fp32-compiled; do
    "$python" bench/train_cpu_peer.py "$mode" "$steps" | tee -a "$results"
  done
  "$program" bench --workload 124m --bf16 --steps "$steps" | tee -a "$results"
  for mode in bf16 bf16-autocast bf16-compiled bf16-autocast-compiled; do
    "$python" bench/train_cpu_peer.py "$mode" "$steps" | tee -a "$results"
  done
done

"$python" - "$results" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
def median(system, modes, key):
    groups = {}
    for run in runs:
        if run["system"].startswith(system) and run["mode"] in modes:
            groups.setdefault(run["mode"], []).append(run[key])
    return {mode: statistics.median(values) for mode, values in groups.items()}
for ours, theirs in (("float32", ["fp32", "fp32-compiled"]),
                     ("bfloat16", ["bf16", "bf16-autocast", "bf16-compiled",
                                   "bf16-autocast-compiled", "fp32"])):
    speed = median("megatron", [ours], "tokens_per_second")[ours]
    memory = median("megatron", [ours], "peak_rss_mib")[ours]
    for mode, peer in median("torch", theirs, "tokens_per_second").items():
        rss = median("torch", [mode], "peak_rss_mib")[mode]
        print(f"{ours}: {speed:.1f} tokens/s, {speed / peer:.2f} x torch {mode} ({peer:.1f}); "
              f"peak {memory:.0f} MiB, {memory / rss:.2f} x ({rss:.0f})")
PY
