# Tries what a Node needs of its machine and prints a line for each thing that is refused.
# $1 the file system that containers lie on
try() {
  what=$1
  shift
  said=$("$@" 2>&1) || echo "$what: $(echo "$said" | head -n 1)"
}
rules() {
  nft -f - <<'RULES'
table ip trial {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    ip daddr 10.0.0.1 dnat to 10.0.0.2
  }
}
RULES
}
overlay() {
  folder=$(mktemp -d) && mkdir "$folder/low" "$folder/up" "$folder/work" "$folder/all" &&
    mount -t "${1%fs}" trial -o "lowerdir=$folder/low,upperdir=$folder/up,workdir=$folder/work" "$folder/all" &&
    umount "$folder/all"
  code=$?
  rm -rf "$folder"
  return $code
}
cgroups() {
  found=
  for procs in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
    [ -e "$procs" ] || continue
    found=yes
    folder=${procs%/cgroup.procs}/portolan-trial-$$
    mkdir "$folder" && rmdir "$folder" || return 1
  done
  [ -n "$found" ] || { echo "nothing is mounted below /sys/fs/cgroup"; return 1; }
}
mount --make-rprivate /
try "a bridge" ip link add trial0 type bridge
try "links between networks (veth)" ip link add trial1 type veth peer name trial2
try "rules that translate addresses (nftables)" rules
try "forwarding between networks" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
try "a file system in memory" mount -t tmpfs trial /var/log
try "the file system $1 of containers" overlay "$1"
try "cgroups" cgroups
exit 0
