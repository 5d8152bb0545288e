#!/usr/bin/env bash
# Builds the Python package's module and program in build/cpu, and runs the tests of tests/python.
#
#   scripts/python_tests.sh [pytest's arguments ...]
#
# Needs an interpreter with nanobind, numpy and pytest: MG_PYTHON_EXECUTABLE, or .venv/bin/python, or
# python3. With torch, transformers and lm_eval it also runs the tests that need them. Without an
# interpreter it says so and exits with code 77.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${MG_PYTHON_EXECUTABLE:-}
[[ -n $python || ! -x .venv/bin/python ]] || python=$PWD/.venv/bin/python
python=${python:-$(command -v python3 || true)}
if [[ -z $python ]] || ! "$python" -c 'import nanobind, numpy, pytest' 2>/dev/null; then
  echo "python_tests: not run: ${python:-python3} has no nanobind, numpy and pytest;" \
    "install them, or set MG_PYTHON_EXECUTABLE" >&2
  exit 77
fi
mkdir -p build
cmake --preset cpu -DMG_PYTHON=ON -DPython_EXECUTABLE="$python" >build/python.configure.log 2>&1 ||
  { cat build/python.configure.log; exit 1; }
cmake --build build/cpu --parallel "${MG_JOBS:-$(nproc)}" --target megatron_python megatron
export PYTHONPATH=$PWD/build/cpu/python OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$python" -m pytest -q -ra -p no:cacheprovider tests/python "$@"
