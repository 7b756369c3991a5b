#!/usr/bin/env bash
# slurm_cluster.sh DIR COMMAND…: runs a command in a Slurm cluster of two nodes, node01 and node02, on this machine. Needs
# root, slurm-wlm and munge. The daemons live in namespaces of their own (processes, network, mounts), which end with this
# script, so nothing outside can reach or outlive them. Exits with 77 and a reason if the cluster cannot start.
set -u
if [ -z "${SLURM_TEST_NAMESPACE:-}" ]; then
  skip() { echo "skipped: $*"; exit 77; }
  for program in slurmctld slurmd munged srun unshare ip; do
    command -v $program >/dev/null || skip "$program is not installed"
  done
  [ "$(id -u)" = 0 ] || skip "the daemons of Slurm need root"
  unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine does not let us create namespaces"
  export SLURM_TEST_NAMESPACE=1
  exec unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

dir=$1; shift
# Each node has its own directory for temporary files: in /tmp, the PMIx plugins of both would create the same folder.
mkdir -p "$dir"/{state,node01.tmp,node02.tmp}
# Slurm resolves names only if an interface other than loopback is up.
{ ip link set lo up && ip link add psl0 type veth peer name psl1 && ip addr add 10.77.0.1/24 dev psl0 &&
  ip link set psl0 up && ip link set psl1 up; } || { echo "skipped: cannot set up the network"; exit 77; }
printf '127.0.0.1 localhost\n10.77.0.1 node01 node02 %s\n' "$(hostname)" >"$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts || { echo "skipped: cannot mount"; exit 77; }

head -c 1024 /dev/urandom >"$dir/munge.key"
chmod 600 "$dir/munge.key"
cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname)(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
SlurmctldPort=17000
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/%n
TmpFS=$dir/%n.tmp
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node01 NodeHostname=node01 Port=17001 CPUs=4
NodeName=node02 NodeHostname=node02 Port=17002 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
export SLURM_CONF=$dir/slurm.conf
munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" \
  --log-file="$dir/munge.log" --seed-file="$dir/munge.seed" >"$dir/munge.out" 2>&1 &
slurmctld -D >"$dir/ctld.out" 2>&1 &
for node in node01 node02; do slurmd -D -N $node >"$dir/$node.out" 2>&1 & done
while [ $SECONDS -lt 60 ]; do
  [ "$(timeout 5 sinfo -h -o '%D %T' 2>/dev/null)" = '2 idle' ] && ready=1 && break
  sleep 0.1
done
if [ -z "${ready:-}" ]; then
  echo "skipped: Slurm does not start:"; tail -n 3 "$dir"/*.out; exit 77
fi
"$@"
