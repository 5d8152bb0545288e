#!/usr/bin/env bash
# Starts processes as torchrun does, half of them on each of two hosts: network namespaces, joined by
# a cable, with host names of their own. Exit code 77 where that is not allowed.
#
#   two_hosts.sh NUMBER PROGRAM [ARGUMENT ...]
set -uo pipefail

number=$1
shift
left=left$$ right=right$$
clean_up() {
  ip netns del "$left" 2>/dev/null
  ip netns del "$right" 2>/dev/null
}
trap clean_up EXIT
{
  ip netns add "$left" && ip netns add "$right" &&
    ip -n "$left" link add cable type veth peer name cable netns "$right" &&
    ip -n "$left" addr add 10.77.0.1/24 dev cable && ip -n "$right" addr add 10.77.0.2/24 dev cable &&
    ip -n "$left" link set cable up && ip -n "$right" link set cable up &&
    ip -n "$left" link set lo up && ip -n "$right" link set lo up
} 2>/dev/null || { echo "two_hosts.sh: needs the right to make network namespaces" >&2; exit 77; }

half=$(((number + 1) / 2))
export WORLD_SIZE=$number MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
export MEGATRON_SECRET=${MEGATRON_SECRET:-the secret of the tests}
processes=()
for ((rank = 0; rank < number; ++rank)); do
  host=$left local_rank=$rank local_size=$half
  ((rank < half)) || { host=$right local_rank=$((rank - half)) local_size=$((number - half)); }
  RANK=$rank LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=$local_size ip netns exec "$host" \
    unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@" &
  processes+=($!)
done
status=0
for process in "${processes[@]}"; do
  wait "$process" || status=$?
done
exit "$status"
