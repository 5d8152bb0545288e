#!/usr/bin/env bash
# Tries the packages of a folder in a Debian 12 that has nothing else: the tarball trains and writes,
# the Debian packages install, train, compile an example, and uninstall without a trace.
#
#   scripts/try_packages.sh FOLDER [DEBIAN]
#
# DEBIAN: the folder of a system that debootstrap made, changed by this; otherwise one is made and
# removed. Needs root and a network.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'umount "$debian/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
debian=${2:-}
if [[ -z $debian ]]; then
  scripts/bootstrap.sh debootstrap
  debian=$work/debian
  debootstrap --variant=minbase bookworm "$debian" >"$work/log" || { tail "$work/log" >&2; exit 1; }
fi
mountpoint -q "$debian/proc" || mount -t proc proc "$debian/proc"  # the program looks for its own place there
inside() { chroot "$debian" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/opt DEBIAN_FRONTEND=noninteractive bash -euc "$1"; }

cp scripts/try_program.sh "$debian/opt/try.sh"

echo "== the tarball, beside nothing but Debian's minimal system"
tar -xf "$folder"/megatron-*-x86_64.tar.xz -C "$debian/opt"
inside 'bash /opt/try.sh /opt/megatron-*-x86_64/bin/megatron'
rm -rf "$debian"/opt/megatron-*

echo "== the Debian packages"
cp /etc/resolv.conf "$debian/etc/resolv.conf"
cp "$folder"/*.deb "$debian/opt/"
inside 'apt-get -qq update && apt-get -qq install --no-install-recommends -y /opt/megatron_*.deb >/opt/log 2>&1 || { tail /opt/log; exit 1; }
  bash /opt/try.sh megatron
  gzip -t /usr/share/man/man1/megatron.1.gz 2>/dev/null || test -s /usr/share/man/man1/megatron.1
  bash -n /usr/share/bash-completion/completions/megatron'
echo "== the library"
cp -r examples/pretrain_minimal "$debian/opt/"
inside 'apt-get -qq install --no-install-recommends -y /opt/libmegatron-dev_*.deb cmake make >/opt/log 2>&1 || { tail /opt/log; exit 1; }
  cmake -S /opt/pretrain_minimal -B /opt/built >/opt/log && cmake --build /opt/built >>/opt/log || { tail /opt/log; exit 1; }
  echo "compiled: $(ls /opt/built/pretrain_minimal)"
  apt-get -qq purge -y libmegatron-dev megatron >/opt/log 2>&1
  left=$(find /usr /etc /var/lib -name "*megatron*" ! -path "/var/lib/dpkg/*" ! -path "/var/lib/apt/*")
  test -z "$left" || { echo "try_packages: left behind: $left"; exit 1; }'
echo "try_packages: the packages of $folder install, work and uninstall"
