#!/usr/bin/env bash
# Runs the commands of README.md and the tutorials as they stand there, each document in an empty
# folder.
#
#   scripts/try_documents.sh [DOCUMENT ...]     README.md, docs/rehearsal.md and docs/tutorials/*.md if none is named
#
# These are its blocks of sh, except blocks below a line <!-- not run: REASON -->. A line
# <!-- run: COMMAND --> adds a command that readers do not see: $SOURCE in it is this repository.
# `megatron serve` runs in the background, at a free port, until the document ends. The program is
# that of MG_BIN, by default build/cpu/bin; --device cpu is the machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOURCE=$PWD
bin=$(realpath "${MG_BIN:-build/cpu/bin}")
[[ -x $bin/megatron ]] || { echo "try_documents: $bin/megatron does not exist; build it, or set MG_BIN" >&2; exit 2; }
export PATH=$bin:$PATH
documents=("$@")
[[ $# -gt 0 ]] || documents=(README.md docs/rehearsal.md docs/tutorials/*.md)

# The commands of a document as a script; each server is waited for.
script_of() {
  awk -v port="$2" '
    function finish_server() {
      print ") &>serve.log &"
      print "until curl -sf localhost:" port "/health >health.txt; do kill -0 $!; sleep 0.1; done"
    }
    /^<!-- not run: .* -->$/ { is_left_out = 1 }
    /^<!-- run: .* -->$/ { sub(/^<!-- run: /, ""); sub(/ -->$/, ""); print; next }
    /^```sh$/ && !is_left_out { in_code = 1; next }
    /^```/ { if (in_code || $0 == "```") is_left_out = 0; in_code = 0; next }
    !in_code { next }
    { gsub(/5000/, port) }
    /^megatron serve / { print "(exec " $0; if (!(is_server = /\\$/)) finish_server(); next }
    is_server { print; if (!(is_server = /\\$/)) finish_server(); next }
    { print }' "$1"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=()
for document in "${documents[@]}"; do
  start=$SECONDS
  place=$folder/$(basename "$document" .md)
  mkdir "$place"
  script_of "$document" $((20000 + RANDOM % 10000)) >"$place.sh"
  if ! grep -q '^megatron \|^torchrun \|^accelerate \|^deepspeed ' "$place.sh"; then
    echo "try_documents: $document has no commands" >&2
    failed+=("$document")
  elif (cd "$place" && bash -c 'trap "kill \$(jobs -p) 2>/dev/null || true" EXIT
      set -euxo pipefail; source "$0"' "$place.sh") &>"$place.log"; then
    echo "$document: $(grep -c '^++ ' "$place.log") commands, $((SECONDS - start)) s"
  else
    tail -n 40 "$place.log" >&2
    [[ ! -e $place/serve.log ]] || tail -n 5 "$place/serve.log" >&2
    failed+=("$document")
  fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "try_documents: failed: ${failed[*]}" >&2
  exit 1
fi
