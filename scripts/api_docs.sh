#!/usr/bin/env bash
# Generates the API reference of the installed headers: build/api/html/index.html. Fails on a
# warning of Doxygen.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v doxygen >/dev/null || scripts/bootstrap.sh doxygen
rm -rf build/api
mkdir -p build/api/generated/megatron/run
cmake -DMG_SOURCE_DIR="$PWD" -DMG_OUTPUT="$PWD/build/api/generated/megatron/run/interface_hash.h" \
  -P cmake/interface_hash.cmake
cmake -DMG_SOURCE_DIR="$PWD" -DMG_GENERATED_DIR="$PWD/build/api/generated" \
  -DMG_INCLUDE_NAME=include -DCMAKE_INSTALL_PREFIX="$PWD/build/api" \
  -P cmake/install_headers.cmake >build/api/install.log
doxygen docs/Doxyfile
echo "API reference: build/api/html/index.html"
