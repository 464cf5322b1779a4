# The programs of a Node, the first process of its namespaces: the end of one of them is the end of all.
set -eu
hostname "$NAME"
mount --make-rprivate /
for folder in /run /var/lib/cni /var/log; do
  mkdir -p $folder
  mount -t tmpfs -o mode=755 node $folder
done
# Each controller as its part of $CGROUP, as if that were all.
for controller in /sys/fs/cgroup/*/tasks; do
  [ -e "$controller" ] || continue
  mounted=${controller%/tasks}
  option=${mounted##*/}
  [ "$option" != systemd ] || option=none,name=systemd
  umount "$mounted"
  mount -t cgroup -o "$option" node "$mounted"
done
# Sockets lie below it, and their paths may not be long.
mkdir -p /run/kubelet /run/netns
mount --bind "$FOLDER/kubelet" /run/kubelet
"$IP" link set lo up
until "$IP" link show eth0 >/dev/null 2>&1; do sleep 0.02; done
"$IP" addr add "$ADDRESS/$PREFIX" dev eth0
"$IP" link set eth0 up
"$IP" route add default via "$GATEWAY"
echo 1 >/proc/sys/net/ipv4/ip_forward

run() {
  name=$1
  shift
  { "$@" >>"$FOLDER/$name.log" 2>&1 || :; echo "$name has ended: $FOLDER/$name.log says why" >&2; kill -9 -1; } &
}
ctr() { "$CONTAINERD/ctr" --address /run/containerd/containerd.sock --namespace k8s.io "$@"; }
run containerd "$CONTAINERD/containerd" --config "$FOLDER/containerd.toml"
until ctr version >/dev/null 2>&1; do sleep 0.05; done
for image in "$FOLDER"/images/*.tar; do
  ctr images import --local --snapshotter "$SNAPSHOTTER" "$image" >/dev/null
done
run coredns "$COREDNS/coredns" -conf "$FOLDER/Corefile"
run kube-proxy "$KUBELET/kube-proxy" --config "$FOLDER/kube-proxy.yaml" --hostname-override "$NAME"
run kubelet "$KUBELET/kubelet" --config "$FOLDER/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir /run/kubelet \
  --hostname-override "$NAME" --node-ip "$ADDRESS"
wait
