#!/usr/bin/env bash
# Builds the packages of preset package into build/package/packages:
#
#   megatron_VERSION_amd64.deb         the program, its manual page and completions of shells
#   libmegatron-dev_VERSION_amd64.deb  the static library, headers and CMake package
#   megatron-VERSION-x86_64.tar.xz     the program with its libraries, for any Linux with glibc 2.36 or
#                                      newer: extract it anywhere and run bin/megatron
#
#   scripts/package.sh                 build and check them here
#   scripts/package.sh --try           then try them in an empty Debian 12; needs root and a network
#
# All run on every x86-64 processor with AVX2 (scripts/check_portable.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
readonly build=build/package out=build/package/packages

try=
case ${1:-} in
  --try) try=1 ;;
  '') ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; [[ $1 == --help || $1 == -h ]] && exit 0 || exit 2 ;;
esac

scripts/bootstrap.sh binutils dpkg-dev xz-utils
mkdir -p build
cmake --preset package >"$build.configure.log" 2>&1 || { cat "$build.configure.log"; exit 1; }
cmake --build "$build" --parallel "${MG_JOBS:-$(nproc)}" --target megatron megatron_archive megatron_man
scripts/check_portable.sh "$build/bin/megatron"

rm -rf "$out"
mkdir -p "$out"
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$build/cpack" >"$build/cpack.log" || { cat "$build/cpack.log"; exit 1; }
mv "$build"/cpack/*.deb "$out"

version=$(sed -n 's/^project(megatron VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
name=megatron-$version-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component runtime --strip --prefix "$work/$name" >/dev/null
mkdir -p "$work/$name/lib/megatron"
# Every system with that C library has these of the compiler, too, and newer ones load drivers.
readonly of_system='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so'
ldd "$build/bin/megatron" | awk '$2 == "=>" { print $1, $3 }' | while read -r file path; do
  [[ ! $file =~ $of_system ]] || continue
  cp -L "$path" "$work/$name/lib/megatron/$file"
  path=$(realpath "$path")  # packages may name it without /usr
  package=$({ dpkg -S "$path" || dpkg -S "${path#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1)
  cp "/usr/share/doc/$package/copyright" "$work/$name/share/doc/megatron/copyright.$package"
done
# The program finds its libraries, and these theirs, from wherever the folder is.
others=$(env -u LD_LIBRARY_PATH ldd "$work/$name/bin/megatron" | awk '$2 == "=>" { print $1, $3 }' |
  grep -v -e " $work/$name/" -e ' ($' | grep -Ev "$of_system" || true)
[[ -z $others ]] || { echo "package: the tarball does not have all libraries: $others" >&2; exit 1; }
tar -C "$work" --owner=0 --group=0 --sort=name -cf - "$name" | xz -T0 -4 >"$out/$name.tar.xz"

ls -l "$out"
[[ -z $try ]] || scripts/try_packages.sh "$out"
