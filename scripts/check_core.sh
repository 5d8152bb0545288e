#!/usr/bin/env bash
# Builds the program and some tests of preset core, runs these tests, and fails if the program needs
# a library besides those of scripts/bootstrap.sh --core and of the compiler.
#
#   scripts/check_core.sh [test ...]      cli, tokenizers and data if none is named
set -euo pipefail
cd "$(dirname "$0")/.."
readonly allowed='^(libdnnl|libfmt|libsimdjson|libz|libcrypto|libutf8proc|libstdc\+\+|libgcc_s|libgomp|libm|libc|ld-linux-x86-64)\.so'

tests=("${@:-}")
[[ $# -gt 0 ]] || tests=(cli tokenizers data)
cmake --preset core
cmake --build build/core --parallel "${MG_JOBS:-$(nproc)}" --target megatron "${tests[@]/%/_test}"

others=$(readelf -d build/core/bin/megatron | awk -F '[][]' '/NEEDED/ { print $2 }' | grep -Ev "$allowed" || true)
if [[ -n $others ]]; then
  echo "check_core: the program of preset core needs $others: give what uses it an option in cmake/parts.cmake" >&2
  exit 1
fi
for test in "${tests[@]}"; do build/core/bin/"${test}"_test --gtest_brief=1; done
