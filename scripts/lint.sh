#!/usr/bin/env bash
# Checks that the compiler does not make: floors, format, shell scripts, documents, the API
# reference.
#
#   scripts/lint.sh [floors|format|shell|docs|api|tidy ...]
#
# Without arguments it runs all checks except tidy; api, which generates the reference with Doxygen
# and fails on its warnings, runs only if Doxygen is installed. tidy runs clang-tidy on the sources
# of megatron/ and annex/ that differ from MG_TIDY_BASE, the last changed first, at most
# MG_TIDY_FILES (16) of them. The base is the commit that HEAD has in common with origin/main; where
# that is HEAD itself, or there is no such branch, the one of 20 commits ago.
set -euo pipefail
cd "$(dirname "$0")/.."

# One version for all authors, because others break lines differently. Debian 12 and Ubuntu 24.04
# have it.
readonly formatter=clang-format-14

floors() {
  git ls-files -z 'megatron/*' 'annex/*' | xargs -0 awk -f scripts/lint_floors.awk docs/floors.txt
}

format() {
  command -v "$formatter" >/dev/null || scripts/bootstrap.sh "$formatter"
  git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r "$formatter" --dry-run -Werror
}

shell() {
  command -v shellcheck >/dev/null || scripts/bootstrap.sh shellcheck
  git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck --severity=warning
}

docs() { scripts/docs_check.sh; }

api() { scripts/api_docs.sh; }

tidy_base() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null) || base=$(git rev-parse HEAD)
  if [[ $base == $(git rev-parse HEAD) ]]; then
    base=$(git rev-parse -q --verify HEAD~20 || git rev-list --max-parents=0 HEAD | tail -1)
  fi
  echo "$base"
}

# Changed sources, and the sources of changed headers; those of a build without options are known.
tidy_files() {
  { git diff --name-only --diff-filter=d HEAD -- megatron annex
    git log --format= --name-only --diff-filter=d "$1..HEAD" -- megatron annex; } |
    sed -n 's/\.h$/.cpp/; /\.cpp$/p' |
    awk -v most="${MG_TIDY_FILES:-16}" '
      NR == FNR { if (match($0, /"file": "/)) known = known $0; next }
      !seen[$0]++ && index(known, "/" $0 "\"") && count++ < most' build/tidy/compile_commands.json -
}

# All sources would take three quarters of an hour (make tidy); mistakes are in the new ones.
tidy() {
  command -v clang-tidy-14 >/dev/null || scripts/bootstrap.sh clang-tidy-14
  # The presets compile several sources as one; here each has a command, and generated headers exist.
  cmake --preset cpu -B build/tidy -DMG_UNITY=OFF >/dev/null
  cmake --build build/tidy --target mg_event_proto mg_interface_hash >/dev/null
  local files
  mapfile -t files < <(tidy_files "${MG_TIDY_BASE:-$(tidy_base)}")
  [[ ${#files[@]} -gt 0 ]] || return 0
  printf '%s\n' "${files[@]}" |
    xargs -n 1 -P "${MG_JOBS:-$(nproc)}" clang-tidy-14 -p build/tidy --quiet 2>/dev/null
}

checks=("$@")
if [[ ${#checks[@]} -eq 0 ]]; then
  checks=(floors format shell docs)
  if command -v doxygen >/dev/null; then checks+=(api); fi
fi

bad=()
for check in "${checks[@]}"; do
  case $check in
    floors | format | shell | docs | api | tidy) "$check" || bad+=("$check") ;;
    *)
      echo "lint.sh: no check is called $check; there are floors, format, shell, docs, api, tidy" >&2
      exit 2
      ;;
  esac
done

if [[ ${#bad[@]} -gt 0 ]]; then
  echo "lint: failed: ${bad[*]}" >&2
  exit 1
fi
echo "lint: clean (${checks[*]})"
