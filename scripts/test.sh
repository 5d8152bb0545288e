#!/usr/bin/env bash
# Installs missing packages, builds, runs the CPU test suite and ends with "N passed, N failed".
#
#   scripts/test.sh                 the whole suite, preset cpu
#   scripts/test.sh --sanitizers    then the unit tests under asan and tsan, each in its own folder
#   scripts/test.sh PRESET ...      these presets only
#
# Counts test cases, not programs; build/PRESET/reports/failed.txt names those that failed. Exits
# non-zero when anything fails.
set -euo pipefail
cd "$(dirname "$0")/.."

presets=()
for argument in "$@"; do
  case $argument in
    --sanitizers) presets+=(cpu asan tsan) ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) echo "test.sh: unknown option $argument; try --help" >&2; exit 2 ;;
    *) presets+=("$argument") ;;
  esac
done
[[ ${#presets[@]} -gt 0 ]] || presets=(cpu)

scripts/bootstrap.sh
# The presets of the sanitizers compile with clang, in half of GCC's time.
case " ${presets[*]} " in *\ asan\ * | *\ tsan\ *) scripts/bootstrap.sh clang-14 libclang-rt-14-dev libomp-14-dev ;; esac

jobs=${MG_JOBS:-$(nproc)}
passed=0 failed=0 skipped=0

# The thread sanitizers of GCC 12 and clang 14 may not start if the kernel randomises many address bits.
without_address_randomisation() {
  local wrap=(setarch "$(uname -m)" --addr-no-randomize)
  if "${wrap[@]}" true 2>/dev/null; then "${wrap[@]}" "$@"; else "$@"; fi
}

# Runs one preset and adds its test cases to the totals.
run_preset() {
  local preset=$1 folder=build/$1 reports=build/$1/reports run=() counts

  echo "== $preset: build"
  cmake --preset "$preset" >"$folder.configure.log" 2>&1 || { cat "$folder.configure.log"; return 1; }
  # The presets of the sanitizers run only unit tests.
  local targets=()
  [[ $preset == asan || $preset == tsan ]] && targets=(--target unit_tests)
  cmake --build "$folder" --parallel "$jobs" "${targets[@]}" || return 1

  echo "== $preset: test"
  rm -rf "$reports"
  mkdir -p "$reports"
  [[ $preset == tsan ]] && run=(without_address_randomisation)
  # Every GoogleTest program writes reports/<program>.xml; ctest.xml has one entry for each program.
  # Tests of waits and of other hosts leave their core idle: one program more than there are cores.
  GTEST_OUTPUT="xml:$PWD/$reports/" "${run[@]}" \
    ctest --preset "$preset" --parallel "$((jobs + 1))" --output-junit "$PWD/$reports/ctest.xml" || true

  [[ -s $reports/ctest.xml ]] || { echo "$preset: ctest ended without a report" >&2; return 1; }
  counts=$(awk -v names="$reports/failed.txt" -f scripts/count_tests.awk "$reports"/*.xml) || return 1
  cat "$reports/failed.txt"
  local p f s
  read -r p f s <<<"$counts"
  echo "== $preset: $p passed, $f failed, $s not run for want of their data"
  [[ $((p + f)) -gt 0 ]] || { echo "$preset: no test ran" >&2; return 1; }
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

mkdir -p build
for preset in "${presets[@]}"; do
  # A preset that cannot be built or run counts as one failure.
  run_preset "$preset" || failed=$((failed + 1))
done

# The Python package, where an interpreter has what its tests need.
run_python() {
  local report=build/python.xml code=0 counts p f s
  echo "== python"
  rm -f "$report"
  scripts/python_tests.sh --junitxml="$report" || code=$?
  [[ $code -ne 77 ]] || return 0
  [[ -s $report ]] || { echo "python: pytest ended without a report" >&2; return 1; }
  counts=$(sed -nE 's/.*<testsuite [^>]*errors="([0-9]+)" failures="([0-9]+)" skipped="([0-9]+)" tests="([0-9]+)".*/\1 \2 \3 \4/p' "$report")
  local errors failures skips tests
  read -r errors failures skips tests <<<"$counts"
  p=$((tests - errors - failures - skips)) f=$((errors + failures)) s=$skips
  echo "== python: $p passed, $f failed, $s not run for want of a package"
  [[ $((p + f)) -gt 0 ]] || { echo "python: no test ran" >&2; return 1; }
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
case " ${presets[*]} " in *\ cpu\ *) run_python || failed=$((failed + 1)) ;; esac

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
