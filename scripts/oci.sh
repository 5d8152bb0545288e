#!/usr/bin/env bash
# Makes an OCI image of a build, without a daemon, a registry or a Dockerfile:
#
#   scripts/oci.sh cpu [BUILD] [--try]     build/oci/megatron-VERSION-cpu.tar, of build/package
#   scripts/oci.sh cuda [BUILD] [--try]    build/oci/megatron-VERSION-cuda.tar, of build/cuda
#
# BUILD is another folder with bin/megatron. The image is Debian 12's minimal system, the libraries that
# the program needs, the program, and for GPUs cuBLASLt, cuDNN and NCCL from where the program finds them.
# Its system, build/oci/debian-*.tar, is kept: remove it to get Debian's newer packages.
# --try: starts a container of the image, which trains and writes.
#
# Needs root, and a network for Debian's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; }
kind=${1:-} build='' try=''
case $kind in
  cpu) build=build/package ;;
  cuda) build=build/cuda ;;
  --help | -h) usage && exit 0 ;;
  *) usage && exit 2 ;;
esac
shift
for word in "$@"; do
  case $word in
    --try) try=1 ;;
    -*) usage && exit 2 ;;
    *) build=$word ;;
  esac
done
readonly program=$build/bin/megatron out=build/oci
if [[ ! -x $program ]]; then
  echo "oci: there is no $program; build it first (docs/packages.md), or name another folder" >&2
  exit 1
fi
scripts/bootstrap.sh buildah crun mmdebstrap binutils
mkdir -p "$out"
version=$(sed -n 's/^project(megatron VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
image_tool() { buildah --root "$work/storage" --runroot "$work/run" "$@"; }

# The packages of Debian that have the program's libraries.
packages=$(ldd "$program" | awk '$2 == "=>" && $3 { print $3 }' | while read -r file; do
  file=$(realpath "$file")  # packages may name it without /usr
  { dpkg -S "$file" || dpkg -S "${file#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1
done | sort -u | paste -sd,)
system=$out/debian-$(md5sum <<<"$packages" | cut -c1-8).tar
if [[ ! -s $system ]]; then
  mmdebstrap --quiet --variant=minbase --include="ca-certificates,$packages" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    bookworm "$work/system.tar"
  mv "$work/system.tar" "$system"
fi

container=$(image_tool from scratch)
image_tool add --quiet "$container" "$system" / >/dev/null
install --strip "$program" "$work/megatron"
image_tool copy --quiet "$container" "$work/megatron" /usr/local/bin/megatron >/dev/null
image_tool copy --quiet "$container" LICENSE /usr/share/doc/megatron/copyright >/dev/null
settings=(--label "org.opencontainers.image.title=megatron"
  --label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=MIT)
if [[ $kind == cuda ]]; then
  # Loaded at first use (megatron/device/lazy_library.h); cuDNN's parts load NVRTC.
  IFS=: read -ra folders < <(readelf -d "$program" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
  for pattern in libcublasLt.so.13 'libcudnn*.so.9' libnccl.so.2 libnvrtc.so.13 'libnvrtc-builtins.so.13.*'; do
    found=$(find -L "${folders[@]}" /usr/lib/x86_64-linux-gnu -maxdepth 1 -name "$pattern" 2>/dev/null |
      awk -F/ '!seen[$NF]++')
    [[ $found ]] || { echo "oci: there is no $pattern in ${folders[*]}" >&2; exit 1; }
    while read -r file; do
      cp -L "$file" "$work/library"
      image_tool copy --quiet "$container" "$work/library" "/usr/local/lib/${file##*/}" >/dev/null
    done <<<"$found"
  done
  # NVIDIA's runtime of containers mounts the driver for these.
  settings+=(--env NVIDIA_VISIBLE_DEVICES=all --env 'NVIDIA_DRIVER_CAPABILITIES=compute,utility')
fi
image_tool run "$container" -- ldconfig
image_tool config "${settings[@]}" --entrypoint '["megatron"]' --cmd --help --workingdir / "$container"
readonly archive=$out/megatron-$version-$kind.tar
rm -f "$archive"
image_tool commit --quiet --rm --disable-compression=false "$container" "oci-archive:$archive:megatron:$version-$kind" >/dev/null
ls -l "$archive"

[[ $try ]] || exit 0
container=$(image_tool from --quiet "oci-archive:$archive")
image_tool copy --quiet "$container" scripts/try_program.sh /opt/try.sh >/dev/null
image_tool run "$container" -- megatron env
image_tool run "$container" -- bash /opt/try.sh megatron
echo "oci: $archive starts, trains and writes"
