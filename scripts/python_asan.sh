#!/usr/bin/env bash
# Calls the Python module with random arguments, objects and threads under the address sanitizer: any
# access of freed or foreign memory ends with its report. Builds the module in build/python_asan.
#
#   scripts/python_asan.sh [SEED ...]     seeds of the calls; default: 7
#
# Needs an interpreter as python_tests.sh does.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${MG_PYTHON_EXECUTABLE:-}
[[ -n $python || ! -x .venv/bin/python ]] || python=$PWD/.venv/bin/python
python=${python:-$(command -v python3)}
readonly build=build/python_asan
mkdir -p build
cmake --preset cpu -B "$build" -DMG_PYTHON=ON -DMG_TESTS=OFF -DPython_EXECUTABLE="$python" -DMG_SANITIZE=address -DCMAKE_BUILD_TYPE=Sanitize \
  -DCMAKE_CXX_FLAGS_SANITIZE=-O0 >"$build.configure.log" 2>&1 || { cat "$build.configure.log"; exit 1; }
cmake --build "$build" --parallel "${MG_JOBS:-$(nproc)}" --target megatron_python
# The interpreter is not built with the sanitizer, so its library comes first. It has leaks of its own;
# nanobind reports those of the module. Threads of OpenMP would hide in its pool.
for seed in "${@:-7}"; do
  MG_RANDOM_SEED=$seed PYTHONPATH=$PWD/$build/python OMP_NUM_THREADS=1 PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_segv=1 \
    LD_PRELOAD="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libstdc++.so)" \
    "$python" -m pytest -q -p no:cacheprovider tests/python/test_random_calls.py
done
