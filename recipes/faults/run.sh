#!/usr/bin/env bash
# A small GPT on four processes loses ranks at random iterations, its launcher, and the disk of its
# checkpoints, which fills. Its losses and its last checkpoint must be those of an undisturbed run,
# to the last bit.
#
#   recipes/faults/run.sh CORPUS OUT [flags of pretrain-gpt]
#
# CORPUS is a folder of recipes/corpus/corpus.py. MEGATRON names the program, MG_ITERATIONS (300)
# the length, a multiple of 5, MG_KILLS (6) the number of ranks that are killed, MG_SEED (1) which
# and when. The disk is a file system in memory, for which the user needs a namespace of his own
# (unshare --mount); where the system allows none, no disk fills.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
if [[ -z ${MG_MOUNTS:-} ]]; then
  export MG_MOUNTS=no
  if unshare --map-root-user --mount true 2>/dev/null; then
    MG_MOUNTS=yes exec unshare --map-root-user --mount "$0" "$@"
  fi
fi
corpus=$1 out=$2
shift 2
megatron=${MEGATRON:-megatron}
iterations=${MG_ITERATIONS:-300}
kills=${MG_KILLS:-6}
RANDOM=${MG_SEED:-1}
flags=("$@")

fail() {
  echo "run.sh: $1" >&2
  [[ ! -e $out/disturbed.log ]] || tail -n 20 "$out/disturbed.log" >&2
  exit 1
}
[[ ! -e $out ]] || fail "$out exists; name a new folder"
mkdir -p "$out/disk"

# start NAME FOLDER [FLAG ...]: a run that goes on from its folder, in the background.
start() {
  "$megatron" launch --nproc-per-node 4 --ranks processes --max-restarts 100 pretrain-gpt \
    --num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 \
    --tensor-model-parallel-size 2 --use-distributed-optimizer --micro-batch-size 2 --global-batch-size 8 \
    --train-iters "$iterations" --lr 1e-3 --lr-decay-style cosine --lr-warmup-fraction 0.05 --eval-iters 0 \
    --train-data-path "$corpus/train_text_document" --data-cache-path "$out/cache" \
    --vocab-file "$corpus/tokenizer/vocab.json" --merge-file "$corpus/tokenizer/merges.txt" \
    --log-interval 1 --metrics-jsonl "$out/$1.jsonl" --distributed-timeout-seconds-after-init 60 \
    --save "$2" --load "$2" --save-interval $((iterations / 5)) --keep-last 2 \
    "${@:3}" "${flags[@]}" >>"$out/$1.log" 2>&1 &
  launch=$!
}
# The iterations of a run in the order of their ends: number, loss, norm of the gradient.
losses_of() {
  [[ ! -e $out/$1.jsonl ]] ||
    sed -n 's/.*"iteration": \([0-9]*\),.*\("lm loss": [^,]*\), \("grad_norm": [^,}]*\).*/\1 \2 \3/p' "$out/$1.jsonl"
}
num_lines() { losses_of disturbed | wc -l; }
num_restarts() { grep -c "restart [0-9]* of 100" "$out/disturbed.log" || true; }
last_iteration() { losses_of disturbed | tail -n 1 | cut -d ' ' -f 1; }
# wait_for COMMAND NUMBER: until what the command prints reaches the number.
wait_for() {
  until [[ $("$1") -ge $2 ]]; do
    [[ -e /proc/$launch ]] || fail "the disturbed run ended too early"
    sleep 0.02
  done
}
num_ranks() { pgrep -c -P "$launch" || true; }
start_disturbed() {
  start disturbed "$out/disk/checkpoint" --non-persistent-ckpt-type local --non-persistent-save-interval 5
  wait_for num_ranks 4
}
now() { date +%s%3N; }

echo "== an undisturbed run"
start undisturbed "$out/undisturbed"
wait "$launch" || { tail -n 20 "$out/undisturbed.log" >&2; fail "the undisturbed run failed"; }
last=$out/undisturbed/$(printf 'iter_%07d' "$iterations")

if [[ $MG_MOUNTS == yes ]]; then
  # Room for the two checkpoints that stay and for two more.
  kilobytes_of() { du -sk "$1" | cut -f 1; }
  mount -t tmpfs -o "size=$(($(kilobytes_of "$out/undisturbed") + 2 * $(kilobytes_of "$last")))k" tmpfs "$out/disk"
else
  echo "no disk fills: this system does not let this user mount one"
fi

echo "== a disturbed run"
start_disturbed
at=0
for ((kill = 1; kill <= kills; ++kill)); do
  at=$((at + 1 + RANDOM % (iterations / (kills + 1))))
  wait_for last_iteration "$at"
  seen=$(last_iteration)
  mapfile -t ranks < <(pgrep -P "$launch")
  rank=$((RANDOM % ${#ranks[@]}))
  restarts=$(num_restarts) killed_at=$(now)
  kill -KILL "${ranks[rank]}" || fail "the disturbed run ended too early"
  wait_for num_restarts $((restarts + 1))
  wait_for num_lines $(($(num_lines) + 1))
  echo "rank $rank killed after iteration $seen: the next iteration ended $(($(now) - killed_at)) ms later"
  if [[ $kill -eq $((kills / 3)) ]]; then
    kill -KILL "$launch"
    { wait "$launch" || true; } 2>/dev/null
    echo "the launcher killed; the same command again"
    start_disturbed
  fi
  if [[ $kill -eq $((kills * 2 / 3)) && $MG_MOUNTS == yes ]]; then
    cat /dev/zero >"$out/disk/ballast" 2>/dev/null || true
    if wait "$launch"; then fail "the run ended well although its disk was full"; fi
    grep "was not saved.*No space left" "$out/disturbed.log" | tail -n 1 || fail "the run did not say that its disk was full"
    rm "$out/disk/ballast"
    echo "the disk has room again; the same command again"
    start_disturbed
  fi
done
wait "$launch" || fail "the disturbed run failed"

echo "== compared"
awk 'FNR == NR { want[$1] = $0; next }
  { if (want[$1] != $0) { print "differs: " want[$1] " | " $0; bad = 1 } num += !seen[$1]++
    if ($1 <= before) { lost += before - $1 + 1 } before = $1 }
  END { print num " iterations with equal losses and gradients, " lost + 0 " computed again"; exit bad || num < '"$iterations"' }' \
  <(losses_of undisturbed) <(losses_of disturbed) || fail "the disturbed run differs"
num_files=0
for file in "$last"/*.safetensors; do
  cmp "$file" "$out/disk/checkpoint/${last##*/}/${file##*/}" || fail "the last checkpoints differ"
  num_files=$((num_files + 1))
done
echo "the last checkpoints' $num_files files of tensors are equal"
