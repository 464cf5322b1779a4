# One Node, in namespaces that end with this shell: puts it on the bridge and leads its Pods' and Services' addresses there.
# $INSIDE: what runs in it, with the same variables.
set -eu
# Cgroups of containers outlive whoever made them. Below one of ours they are found and swept (cgroups of version 1 alone).
for controller in /sys/fs/cgroup/*/tasks; do
  [ -e "$controller" ] || continue
  group=${controller%/tasks}/$CGROUP
  mkdir -p "$group"
  # A set without CPUs and memory takes no process.
  for set in cpuset.cpus cpuset.mems; do
    [ ! -e "$group/$set" ] || cat "${controller%/tasks}/$set" >"$group/$set"
  done
  # To the scheduler all of a Node is one, beside each single program of a busy machine.
  [ ! -e "$group/cpu.shares" ] || echo 8192 >"$group/cpu.shares"
  echo $$ >"$group/tasks"
done
"$UNSHARE" --net --mount --pid --uts --cgroup --fork --kill-child --mount-proc -- sh -c "$INSIDE" node &
node=$!
trap 'kill -9 $node 2>/dev/null' EXIT
until [ "$(readlink /proc/$node/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
  kill -0 $node
  sleep 0.02
done
"$IP" link add "$LINK" type veth peer name eth0 netns $node
"$IP" link set "$LINK" master "$BRIDGE" up
"$IP" route add "$PODS" via "$ADDRESS"
"$IP" route add "$SERVICES" via "$ADDRESS"
wait $node
