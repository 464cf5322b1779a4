#!/usr/bin/env bash
# Builds the router by a profile of its own requests: once so that it counts what runs, then, after the bench has asked it for a
# while, by what was counted. What always runs then lies together, and what seldom does out of its way. On Linux, as the bench.
#
#   profiled-build.sh PROGRAMS OUT    # PROGRAMS: optimised ones, portolan-bench among them; OUT: gets them all, the router anew
set -euo pipefail
programs=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
building=$out.building

# What reads the counts must be of the compiler's LLVM: the format changes.
find_profdata() {
  local candidate
  for candidate in "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" "llvm-profdata-$llvm" llvm-profdata; do
    if "$candidate" --version 2>/dev/null | grep -q "LLVM version $llvm\."; then
      echo "$candidate"
      return
    fi
  done
  echo "llvm-profdata of LLVM $llvm is missing: \`rustup component add llvm-tools\`, or install the package llvm-$llvm" >&2
  return 1
}

# The router, built with these flags, into a folder. The target is named, so that build scripts and macros are built without them.
build() {
  RUSTFLAGS="${RUSTFLAGS-} $2" CARGO_INCREMENTAL=0 "${CARGO:-cargo}" build --locked --release --workspace \
    --exclude portolan-fuzz --bin portolan-router --target "$host" --target-dir "$building/target"
  cp "$building/target/$host/release/portolan-router" "$1/"
  rm -rf "$building/target"
}

profdata=$(find_profdata)
rm -rf "$building"
trap 'rm -rf "$building"' EXIT
mkdir -p "$building/counting" "$building/done"
for program in "$programs"/portolan-* "$programs"/portolanctl; do
  if [ -x "$program" ] && [ -f "$program" ]; then
    cp "$program" "$building/done/"
  fi
done
echo "1 of 3: a router that counts what runs" >&2
build "$building/counting" "-Cprofile-generate=$building/counts"
echo "2 of 3: GETs, lists and watches" >&2
PORTOLAN_PROGRAMS=$building/counting "$building/done/portolan-bench" --only peers --rows gets,lists,events,merged,watches \
  --rounds 1 --requests 6000 --latency-seconds 2 --end-gently --router-flag=--drain-timeout=2s
"$profdata" merge -o "$building/router.profdata" "$building/counts"
echo "3 of 3: the router by what was counted" >&2
build "$building/done" "-Cprofile-use=$building/router.profdata"
rm -rf "$out"
mv "$building/done" "$out"
echo "$out has the programs" >&2
