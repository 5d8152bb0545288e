#!/bin/sh
# join_variant.sh FOLDER VARIANT OBJECT...: joins the objects in FOLDER/VARIANT.o. Its code is in a
# section of its own, its functions f are visible as f.VARIANT, which FOLDER/VARIANT.txt lists, and
# everything else in it is local. LD, NM and OBJCOPY name the tools.
set -eu
folder=$1 variant=$2
shift 2
result=$folder/$variant
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
visible() { "$NM" --defined-only --extern-only "$1"; }

echo "SECTIONS { $(echo "cpu_$variant" | tr - _) : { *(.text .text.*) } }" >"$work/script"
"$LD" -r --force-group-allocation -T "$work/script" -o "$work/joined.o" "$@"
visible "$work/joined.o" >"$work/symbols"
awk -v suffix=".$variant" '$2 == "T" { print $3, $3 suffix }' "$work/symbols" >"$work/names"
# objcopy does not make unique symbols local, but weak ones.
awk '$2 == "u" { print $3 }' "$work/symbols" >"$work/unique"
"$OBJCOPY" --redefine-syms="$work/names" --weaken-symbols="$work/unique" "$work/joined.o" "$work/renamed.o"
awk '{ print $2 }' "$work/names" >"$work/kept"
"$OBJCOPY" --keep-global-symbols="$work/kept" "$work/renamed.o" "$work/local.o"
if visible "$work/local.o" | grep -v " T "; then
  echo "join_variant.sh: these symbols of $variant would be visible to all code; make them local" >&2
  exit 1
fi
mv "$work/local.o" "$result.o"
mv "$work/kept" "$result.txt"
