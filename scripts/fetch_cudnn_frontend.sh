#!/usr/bin/env bash
# Fetches the headers of NVIDIA's cudnn-frontend (Apache License 2.0, MIT) into
# build/cudnn-frontend, where the preset cuda finds them. Without them attention runs on slower own
# kernels. Needs python3 with pip; silent and without network if they exist.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly version=1.18.0  # links with neither NVRTC nor the driver library
readonly folder=build/cudnn-frontend

[[ ! -f $folder/include/cudnn_frontend.h ]] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
  --only-binary :all: --dest "$scratch" "nvidia-cudnn-frontend==$version" 2>"$scratch/log"; then
  tail -n 5 "$scratch/log" >&2
  echo "fetch_cudnn_frontend: pip could not download nvidia-cudnn-frontend $version; its last" \
    "lines are above. Put the package's folder include into $folder by hand" >&2
  exit 1
fi
python3 -m zipfile -e "$scratch"/*.whl "$scratch/package"
mkdir -p "$folder"
cp -r "$scratch"/package/include "$scratch"/package/*.dist-info "$folder"/
