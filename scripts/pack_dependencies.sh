#!/usr/bin/env bash
# Packs the libraries that a build needs, so that it works on a machine without a network, such as a
# node of a cluster. That machine has a compiler, cmake, ninja and, for GPUs, CUDA and cuDNN of its own.
#
#   scripts/pack_dependencies.sh prefix.tar.xz
#
# There, with the files extracted into /opt/prefix:
#
#   export LD_LIBRARY_PATH=/opt/prefix/usr/lib/x86_64-linux-gnu
#   cmake --preset cuda -DCMAKE_PREFIX_PATH=/opt/prefix/usr -DOPENSSL_ROOT_DIR=/opt/prefix/usr \
#     -DCMAKE_LIBRARY_PATH=$LD_LIBRARY_PATH -DCMAKE_INCLUDE_PATH=/opt/prefix/usr/include \
#     -DCUDNN_FRONTEND_INCLUDE=/opt/prefix/cudnn-frontend/include -DMG_RETRO=OFF
#
# The pack is made of Debian's packages and fits machines with the same or a newer C library. It lacks
# Open MPI, which clusters have of their own, and FAISS and HDF5, which MG_RETRO needs.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -eq 1 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
out=$(realpath "$1")

scripts/bootstrap.sh
[[ -d build/cudnn-frontend/include ]] || scripts/fetch_cudnn_frontend.sh

# The libraries of the build, and what they are linked with, but those that every system has.
declare -A packages
add() {
  local package dependency
  package=${1%%:*}
  case $package in
    libc6* | libc-dev* | libstdc++* | libgcc* | gcc-* | libgomp* | *openmpi* | libfaiss* | libhdf5*) return ;;
    lib*-dev | lib*[0-9]* | libprotoc* | nlohmann-json3-dev | zlib1g | zlib1g-dev | protobuf-compiler | libdnnl*) ;;
    *) return ;;
  esac
  [[ -z ${packages[$package]:-} ]] || return 0
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || return 0
  packages[$package]=1
  while read -r dependency; do
    [[ -z $dependency ]] || add "$dependency"
  done < <(dpkg-query -W -f='${Depends}\n' "$package" | head -n 1 | tr ',' '\n' | awk '{ print $1 }')
}
while read -r package; do add "$package"; done < <(scripts/bootstrap.sh --list)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "${!packages[@]}"; do dpkg -L "$package"; done |
  sed -E 's|^/lib/|/usr/lib/|' | grep -E '^/usr/(include|lib|bin/protoc|share/cmake)' | sort -u |
  while read -r file; do
    [[ -d $file && ! -L $file ]] || echo "${file#/}"
  done >"$work/files"
mkdir "$work/prefix"
tar -C / -cf - --files-from "$work/files" | tar -xf - -C "$work/prefix"
# Links lead to the pack, not to the system.
find "$work/prefix" -type l | while read -r link; do
  target=$(readlink "$link")
  [[ $target == /* ]] || continue
  [[ $target == /lib/* ]] && target=/usr$target
  ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$work/prefix$target")" "$link"
done
# Headers of the machine's own kind lie apart in Debian.
for folder in "$work"/prefix/usr/include/*-linux-gnu; do
  [[ -d $folder ]] && cp -a "$folder/." "$work/prefix/usr/include/"
done
mkdir "$work/prefix/cudnn-frontend"
cp -a build/cudnn-frontend/include "$work/prefix/cudnn-frontend/"
find "$work/prefix" -name '*.a' ! -name 'libgtest*' ! -name 'libgmock*' ! -name 'libprotobuf-lite.a' -delete
tar -C "$work/prefix" -cf - . | xz -T0 -2 >"$out.part"
mv "$out.part" "$out"
echo "$out: ${#packages[@]} packages, $(du -h "$out" | cut -f1)"
