# Makes a network with a bridge in namespaces that are this shell's own, runs a program there, and ends with its exit code.
# The shell stays: it collects processes that nobody waits for, and its end is the end of all others.
# $1 ip(8)   $2 name of the bridge   $3 $4 its addresses and prefix   $5 "leash": end all when standard input ends, else "free"
# the rest: program, arguments
set -eu
ip=$1 bridge=$2 address=$3 stage=$4 kind=$5
shift 5
"$ip" link set lo up
"$ip" link add "$bridge" type bridge
"$ip" addr add "$address" dev "$bridge"
"$ip" addr add "$stage" dev "$bridge"
"$ip" link set "$bridge" up
# Pods of two Nodes reach each other through here.
echo 1 >/proc/sys/net/ipv4/ip_forward
if [ "$kind" = leash ]; then
  exec 3<&0 </dev/null
  { read -r line || :; kill -9 -1; } <&3 >/dev/null 2>&1 &
  exec 3<&-
fi
code=0
"$@" || code=$?
exit $code
