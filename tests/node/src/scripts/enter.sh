# Makes the root of a container out of a list of what belongs there, in namespaces that are this shell's own, and becomes the
# program. What it says first on standard output is the program's process id, as those outside count it; all that follows is
# the program's own. If there is no such line, what is wrong is on standard error.
#
# $1 folder that becomes the root   $2 list, see root.rs   $3 host name   $4 working folder   the rest: program, arguments
set -eu
root=$1 list=$2 host=$3 cwd=$4
shift 4
path=${PATH-}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The shell itself opens this file, and /proc is still that of the outside.
read -r pid rest </proc/self/stat
hostname "$host" 2>/dev/null || echo "$host" 2>/dev/null >/proc/sys/kernel/hostname || :
mount -t tmpfs -o mode=0755,size=256m portolan "$root"
cd "$root"
tab=$(printf '\t')
while IFS=$tab read -r kind target source; do
  case $kind in
  dir) mkdir -p -m "$source" ".$target" ;;
  link) mkdir -p ".${target%/*}" && ln -s "$source" ".$target" ;;
  proc) mkdir -p ".$target" && { mount -t proc proc ".$target" 2>/dev/null || mount --rbind /proc ".$target"; } ;;
  rw | ro)
    if [ -d "$source" ]; then
      mkdir -p ".$target"
    else
      mkdir -p ".${target%/*}" && : >".$target"
    fi
    mount --rbind "$source" ".$target"
    [ "$kind" = rw ] || mount -o remount,bind,ro ".$target"
    ;;
  esac
done <"$list"
mkdir -p ".$cwd"
# PATH counts inside, where what it names may be something else.
exec chroot . /bin/sh -c '
PATH=$1 pid=$2
cd "$3"
shift 3
command -v "$1" >/dev/null || { echo "there is no program $1" >&2; exit 127; }
[ -n "$PATH" ] || unset PATH
echo "$pid"
exec "$@"
' sh "$path" "$pid" "$cwd" "$@"
