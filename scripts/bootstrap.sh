#!/usr/bin/env bash
# Installs the missing packages for the CPU build and its tests.
#
#   scripts/bootstrap.sh [package ...]      also installs further packages
#   scripts/bootstrap.sh --core             only what preset core needs
#   scripts/bootstrap.sh --python           .venv, with what the tests of the Python package need, from PyPI
#   scripts/bootstrap.sh [--core] --list    prints the names of the packages
#
# For Debian 12 and Ubuntu 24.04, as root or with sudo. If nothing is missing it is silent and needs
# no network.
set -euo pipefail

readonly core=(
  g++ cmake ninja-build                    # build tools; then the eight of preset core
  libdnnl-dev                              # matrix products on the CPU
  libfmt-dev                               # formatted text
  nlohmann-json3-dev libsimdjson-dev       # checkpoints; corpora
  zlib1g-dev                               # compressed files
  libssl-dev                               # proofs that ranks belong to a job
  libutf8proc-dev                          # Unicode classes of the tokenizers
  libgmock-dev                             # tests
)
readonly parts=(                           # of cmake/parts.cmake, and tools
  ccache make git xz-utils
  liblzma-dev libsnappy-dev libzstd-dev    # text files packed by xz; Parquet files
  libopenmpi-dev openmpi-bin               # ranks that mpirun starts
  libyaml-cpp-dev                          # configuration files of Accelerate
  libcpp-httplib-dev                       # the server
  libpcre2-dev libsentencepiece-dev        # regular expressions of tokenizers; SentencePiece models
  libfaiss-dev libhdf5-dev                 # Retro: search of neighbours; files of chunks
  libprotobuf-dev protobuf-compiler        # TensorBoard files
  libgtest-dev
)

needed=("${core[@]}" "${parts[@]}")
if [[ ${1:-} == --core ]]; then
  needed=("${core[@]}")
  shift
fi
wants_python=no
if [[ ${1:-} == --python ]]; then
  wants_python=yes
  shift
  set -- python3-dev python3-venv "$@"
fi
if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${needed[@]}"
  exit 0
fi

is_installed() {
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "bootstrap: this machine has no apt; install the equivalents of these Debian packages by hand: ${needed[*]} $*" >&2
  exit 1
fi

# Ends the script; the packages of Debian are there.
finish() {
  local wanted=tests/python/requirements.txt
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  if [[ $wants_python == yes ]] && ! cmp -s "$wanted" .venv/requirements.txt; then
    if ! { /usr/bin/python3 -m venv .venv &&
      .venv/bin/pip --quiet --disable-pip-version-check install --requirement "$wanted" &&
      cp "$wanted" .venv/requirements.txt; }; then
      echo "bootstrap: pip could not install the packages of $wanted in .venv" >&2
      exit 1
    fi
  fi
  exit 0
}

missing=()
for package in "${needed[@]}" "$@"; do
  is_installed "$package" || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || finish

# sudo may ask for a password only at a terminal.
if [[ $(id -u) -eq 0 ]]; then
  as_root=()
elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
  as_root=(sudo)
else
  echo "bootstrap: packages are missing and this user is neither root nor may use sudo;" \
    "ask an administrator to run: apt-get install ${missing[*]}" >&2
  exit 1
fi

apt_get() {
  # Waits for other package managers instead of failing; asks no questions.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

echo "bootstrap: installing ${missing[*]} (two minutes or so)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A stale or unreachable package index is not an error yet: the packages may still be available.
apt_get update >"$log" 2>&1 || true
if ! apt_get install --yes --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "bootstrap: apt-get could not install ${missing[*]}; its last lines are above" >&2
  exit 1
fi
finish
