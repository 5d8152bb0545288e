#!/usr/bin/env bash
# Checks that a program of MG_CPU_ARCH=portable runs on each kind of processor:
#
#   scripts/check_portable.sh [PROGRAM]      build/package/bin/megatron if none is named
#
# Only the code for AVX-512 has instructions of AVX-512, each value of MEGATRON_CPU that this
# processor has takes effect, others are errors. Where qemu-x86_64 (Debian's qemu-user) is installed,
# the program computes on an emulated processor with AVX2, and refuses one without.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build/package/bin/megatron}
fail() { echo "check_portable: $*" >&2; exit 1; }

# Counts the instructions of AVX-512 in a section: 512 bits, masks, or registers from 16 on.
count_avx512() {
  objdump --disassemble --no-show-raw-insn --section="$1" "$program" |
    awk '/%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])/ { ++n } END { print n + 0 }'
}
for section in .init .plt .text .fini cpu_avx2; do
  [[ $(count_avx512 $section) -eq 0 ]] || fail "section $section of $program has instructions of AVX-512"
done
for section in cpu_avx512 cpu_avx512_bf16; do
  [[ $(count_avx512 $section) -gt 0 ]] || fail "section $section of $program has no instruction of AVX-512"
done

supported=(avx2)
if grep -qw avx512vl /proc/cpuinfo; then supported+=(avx512); fi
if grep -qw avx512_bf16 /proc/cpuinfo; then supported+=(avx512-bf16); fi
kernels() { "$@" "$program" env 2>/dev/null | sed -n 's/^- CPU kernels: //p'; }
for name in "${supported[@]}"; do
  [[ $(kernels env MEGATRON_CPU="$name") == "$name" ]] || fail "MEGATRON_CPU=$name has no effect"
done
[[ $(kernels env -u MEGATRON_CPU) == "${supported[-1]}" ]] || fail "the latest instruction set is not the default"
if MEGATRON_CPU=sse2 "$program" env >/dev/null 2>&1; then fail "MEGATRON_CPU=sse2 is no error"; fi

if command -v qemu-x86_64 >/dev/null; then
  [[ $(kernels qemu-x86_64 -cpu Haswell) == avx2 ]] || fail "the program does not run on a processor with AVX2"
  run=("$program" pretrain-gpt --mock-data --tokenizer-type NullTokenizer --vocab-size 511 --seq-length 32
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64 --micro-batch-size 2
    --global-batch-size 4 --train-iters 5 --lr 1e-3 --log-interval 1 --eval-iters 0)
  losses() { "$@" 2>/dev/null | grep -oE '(lm loss|grad norm)[^|]*'; }
  here=$(losses env MEGATRON_CPU=avx2 "${run[@]}")
  [[ $(losses qemu-x86_64 -cpu Haswell "${run[@]}") == "$here" ]] ||
    fail "a processor with AVX2 does not compute the numbers of MEGATRON_CPU=avx2"
  message=$(qemu-x86_64 -cpu Nehalem "$program" --version 2>&1 || true)
  [[ $message == *"error: this processor has no AVX2"* ]] || fail "a processor without AVX2 is not refused: $message"
else
  echo "check_portable: qemu-x86_64 was not found, so no other processor was tried"
fi
echo "check_portable: $program runs on ${supported[*]}"
