# Fails when a file includes a folder that is not on a lower floor.
# Usage: awk -f scripts/lint_floors.awk docs/floors.txt $(git ls-files 'megatron/*' 'annex/*')
FNR == NR { floor[$2] = $1; next }          # docs/floors.txt: "<floor> <folder>"

# The folder of docs/floors.txt that a path lies in, the innermost one.
function folder(path) {
  sub(/^megatron\//, "", path)
  while (sub(/\/[^\/]*$/, "", path)) if (path in floor) return path
  return ""
}

match($0, /^#include "(megatron|annex)\/[a-z_]+\/[^"]+/) {
  from = folder(FILENAME); to = folder(substr($0, 11, RLENGTH - 10))
  if (from == "" || to == "" || (from != to && floor[to] >= floor[from])) {
    printf "%s:%d: %s may not include %s\n", FILENAME, FNR, from, to; bad = 1
  }
}
END { exit bad }
