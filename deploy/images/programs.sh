#!/usr/bin/env bash
# Builds what images hold: hub, router, agent and portolanctl, optimised, each with a list of the crates it is made of inside
# (`cargo audit bin` reads it), stripped, and beside it a .debug file that debuggers find by its name.
# Where it is built leaves no trace: paths are mapped, so that the same commit gives the same bytes in any folder.
#
#   programs.sh OUT [TARGET_DIR]    # OUT: gets the programs; TARGET_DIR: what cargo keeps in between; $PROGRAMS: these alone
set -euo pipefail
out=$(realpath -m "$1") target=$(realpath -m "${2:-target/images/build}")
cd "$(dirname "$0")/../.."
version=0.7.7
programs=${PROGRAMS:-portolan-hub portolan-router portolan-agent portolanctl}
cargo=${CARGO:-cargo} home=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")

for tool in objcopy strip readelf; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: install the package binutils" >&2; exit 1; }
done
tools=${PORTOLAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/portolan}/cargo-auditable-$version
[ -x "$tools/bin/cargo-auditable" ] || "$cargo" install --locked --root "$tools" "cargo-auditable@$version"

# Later ones come before earlier ones: the target folder may lie in this one, and Cargo's anywhere.
paths=("$PWD=/portolan" "$home=/cargo" "$target=/target")
export RUSTFLAGS="${RUSTFLAGS-} ${paths[*]/#/--remap-path-prefix=}"
export CFLAGS="${CFLAGS-} ${paths[*]/#/-ffile-prefix-map=}"
export CARGO_INCREMENTAL=0
"$tools/bin/cargo-auditable" auditable build --locked --release --target-dir "$target" \
  -p portolan-hub -p portolan-router -p portolan-agent -p portolan-ctl $(printf -- '--bin=%s ' $programs)
mkdir -p "$out"
for program in $programs; do
  objcopy --only-keep-debug "$target/release/$program" "$out/$program.debug"
  strip -o "$out/$program" "$target/release/$program"
  (cd "$out" && objcopy --add-gnu-debuglink="$program.debug" "$program")
  readelf --sections "$out/$program" | grep '\.dep-v0' >/dev/null || { echo "$program does not say of what crates it is made" >&2; exit 1; }
done
