# Fails when a file includes a folder that is not on a lower floor.
# Usage: awk -f scripts/lint_floors.awk docs/floors.txt $(git ls-files 'megatron/*')
FNR == NR { floor[$2] = $1; next }          # docs/floors.txt: "<floor> <folder>"
match($0, /^#include "megatron\/[a-z_]+\//) {
  split(FILENAME, from, "/"); split($0, to, "/")
  if (!(to[2] in floor) || (from[2] != to[2] && floor[to[2]] >= floor[from[2]])) {
    printf "%s:%d: %s may not include %s\n", FILENAME, FNR, from[2], to[2]; bad = 1
  }
}
END { exit bad }
