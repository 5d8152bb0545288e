#!/usr/bin/env bash
# Runs a command on the first host of a Slurm cluster made for it: two hosts, left and right, which
# are namespaces of this machine. Nothing of it is left when the command has ended.
#
#   tests/interop/slurm.sh build/cpu/bin/program_processes_test --gtest_filter='Slurm*'
#
# Needs root and Debian's slurmctld, slurmd, slurm-client and munge.
set -euo pipefail

if [[ ${1:-} != --inside ]]; then
  for program in slurmctld slurmd srun munged unshare ip; do
    command -v "$program" >/dev/null || { echo "slurm.sh: there is no $program" >&2; exit 2; }
  done
  exec unshare --mount --uts --net --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift

folder=$(mktemp -d /var/tmp/megatron-slurm-XXXXXX)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
mkdir "$folder"/{state,left,right,own}

# The hosts. All but their network, their names and the folder of PMIx is shared.
printf '127.0.0.1 localhost\n10.78.0.1 left\n10.78.0.2 right\n' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
unshare --net --uts --mount sleep infinity &
until [[ $(readlink /proc/$!/ns/mnt) != "$(readlink /proc/self/ns/mnt)" ]]; do sleep 0.01; done
right=(nsenter --net --uts --mount --target $!)
"${right[@]}" mount -t tmpfs tmpfs "$folder/own"
ip link add cable type veth peer name cable netns $!
hostname left
"${right[@]}" hostname right
for host in "10.78.0.1" "${right[*]} 10.78.0.2"; do
  read -ra run <<<"${host% *}"
  address=${host##* }
  [[ ${#run[@]} -gt 1 ]] || run=()
  "${run[@]}" ip addr add "$address/24" dev cable
  "${run[@]}" ip link set cable up
  "${run[@]}" ip link set lo up
done

head -c 1024 /dev/urandom >"$folder/key"
chmod 400 "$folder/key"
munged --force --key-file="$folder/key" --socket="$folder/munge" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/seed"
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=left(10.78.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=20
MpiDefault=none
NodeName=left NodeAddr=10.78.0.1 CPUs=4
NodeName=right NodeAddr=10.78.0.2 CPUs=4
PartitionName=all Nodes=left,right Default=YES OverSubscribe=YES
END
echo "PMIxCliTmpDirBase=$folder/own" >"$folder/mpi.conf"
export SLURM_CONF=$folder/slurm.conf
slurmctld -c
slurmd
"${right[@]}" slurmd

for _ in {1..100}; do
  if timeout 10 srun -N 2 -n 2 true 2>/dev/null; then
    "$@" && code=0 || code=$?
    exit "$code"
  fi
  sleep 0.2
done
echo "slurm.sh: the cluster does not start" >&2
tail -n 5 "$folder"/*.log >&2
exit 1
