#!/usr/bin/env bash
# Builds the program of preset cpu from nothing, without reading the compiler cache, and fails if that
# costs over a tenth more than scripts/build_cost.txt says.
#
#   scripts/build_cost.sh             builds and compares
#   scripts/build_cost.sh --record    builds and writes scripts/build_cost.txt
#
# The cost is the CPU time of the build in units of what one fixed source takes (scripts/build_unit.cpp,
# compiled before and after), so that machines compare. Writes what it compiles to the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly recorded=scripts/build_cost.txt

scripts/bootstrap.sh
rm -rf build/cpu
mkdir -p build
cmake --preset cpu >build/cpu.configure.log 2>&1 || { cat build/cpu.configure.log; exit 1; }

# cpu_seconds COMMAND ...: its CPU time, with that of its children.
cpu_seconds() {
  local TIMEFORMAT='%U %S'
  { time "$@" >&3 2>&3; } 2>&1 | awk '{ print $1 + $2 }'
}
unit() {
  for _ in 1 2 3 4 5; do "${CXX:-c++}" -std=c++20 -O2 -c scripts/build_unit.cpp -o /dev/null; done
}
exec 3>&1

before=$(cpu_seconds unit)
start=$SECONDS
build=$(CCACHE_RECACHE=1 cpu_seconds cmake --build build/cpu --parallel "${MG_JOBS:-$(nproc)}" --target megatron)
elapsed=$((SECONDS - start))
[[ -x build/cpu/bin/megatron ]] || { echo "build_cost: the program was not built" >&2; exit 1; }
after=$(cpu_seconds unit)

cost=$(awk -v build="$build" -v a="$before" -v b="$after" 'BEGIN { printf "%.0f", build / ((a + b) / 10) }')
echo "build_cost: $build CPU-seconds in $elapsed s, $cost units of $(awk -v a="$before" -v b="$after" 'BEGIN { printf "%.2f", (a + b) / 10 }') s"
if [[ ${1:-} == --record ]]; then
  echo "$cost" >"$recorded"
else
  limit=$(awk '{ printf "%.0f", $1 * 1.1; exit }' "$recorded")
  if ((cost > limit)); then
    echo "build_cost: $cost units are above $limit, a tenth over those of $recorded; make headers" \
      "lighter, or record the new cost with scripts/build_cost.sh --record and say why" >&2
    exit 1
  fi
fi
