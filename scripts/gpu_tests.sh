#!/usr/bin/env bash
# Runs the GPU tests of build/cuda (cmake --build build/cuda --target gpu_tests) on all GPUs of the machine,
# the programs with many tests in shards, each of which begins with another GPU.
#
#   scripts/gpu_tests.sh [SECONDS]
#
# A shard is stopped after SECONDS (600). MG_JOBS is the number of shards at a time, by default one and a
# half for each core. build/cuda/gpu has their outputs; the last line is "N passed, N failed, N skipped".
# Exits non-zero when a test fails or a shard does not end.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac

limit=${1:-600} out=$PWD/build/cuda/gpu
jobs=${MG_JOBS:-$(($(nproc) * 3 / 2))}
gpus=$(nvidia-smi --list-gpus | wc -l)
# References on the CPU share the cores with all other shards.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
rm -rf "$out"
mkdir -p "$out"

shards_of() {
  case $1 in
    program_cuda_test) echo 32 ;;
    kernels_cuda_test) echo 24 ;;
    comm_cuda_test) echo 4 ;;
    *) echo 1 ;;
  esac
}

# Shard $2 of $3 of program $1, as number $4 of all.
run_shard() {
  local order='' i status=0 begin=$SECONDS
  for ((i = 0; i < gpus; ++i)); do order+=${order:+,}$((($4 + i) % gpus)); done
  CUDA_VISIBLE_DEVICES=$order GTEST_SHARD_INDEX=$2 GTEST_TOTAL_SHARDS=$3 \
    timeout --kill-after 5 "$limit" "build/cuda/bin/$1" >"$out/$1.$2.log" 2>&1 || status=$?
  [[ $status == 0 ]] || echo "$1, shard $2 of $3: exit code $status after $((SECONDS - begin)) s" | tee -a "$out/ended.txt"
}
export -f run_shard
export limit out gpus

number=0
for program in build/cuda/bin/*cuda*_test; do
  name=$(basename "$program")
  [[ $name != comm_cuda_process_test ]] || continue  # a test of mpirun's processes
  count=$(shards_of "$name")
  for ((i = 0; i < count; ++i)); do echo "$name $i $count $((number++))"; done
done | sort -k 3nr -s | xargs -P "$jobs" -L 1 bash -c 'run_shard "$@"' run_shard

cat "$out"/*.log | grep '^\[  FAILED  \] .*ms)$' || true
cat "$out"/*.log | awk '/^\[       OK \] .*ms\)$/ { ok++ } /^\[  SKIPPED \] .*ms\)$/ { skipped++ } /^\[  FAILED  \] .*ms\)$/ { bad++ }
  END { printf "%d passed, %d failed, %d skipped\n", ok, bad, skipped }'
[[ ! -e $out/ended.txt ]]
