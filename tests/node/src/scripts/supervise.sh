# Runs a program and ends with its exit code. When our standard input ends, for whatever reason, the whole process group is
# killed: the program, what it started that stayed in the group, and this shell. The reader lives on after the program, for
# what that left behind; it holds none of the program's pipes.
exec 3<&0 </dev/null
{ read -r line; kill -9 0; } <&3 >/dev/null 2>&1 &
exec 3<&-
"$@"
exit $?
