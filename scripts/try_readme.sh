#!/usr/bin/env bash
# Runs the commands of README.md's section "The first training" as they stand there, in an empty
# folder, on the text of this project's documents, and asks the server that they start.
#
#   scripts/try_readme.sh [FOLDER]    the folder with the program megatron; build/cpu/bin
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=$(realpath "${1:-build/cpu/bin}")
folder=$(mktemp -d)
server=
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT

# Prints each line of the section's blocks of code that works in any folder.
commands() {
  awk '
    /^## / { inside = $0 == "## The first training" }
    /^```/ { in_code = inside && $0 == "```sh"; next }
    in_code && !/^\.\/scripts\//' README.md
}

commands >"$folder/all.sh"
cat docs/*.md >"$folder/text.txt"
ln -s "$root/scripts" "$folder/scripts"
cd "$folder"
export PATH=$bin:$PATH
sed '/^megatron serve /d' all.sh >train.sh
[[ $(grep -c '^megatron ' train.sh) -ge 5 ]] || { echo "try_readme: README.md has lost its commands" >&2; exit 1; }
bash -euxo pipefail train.sh

serve=$(grep '^megatron serve ' all.sh)
set -x
bash -c "exec ${serve/--port 5000/--port 0}" >serve.log 2>&1 &
server=$!
for _ in $(seq 100); do
  url=$(sed -n 's/^serving .* at \(http[^ ]*\).*/\1/p' serve.log)
  [[ -z $url ]] || break
  sleep 0.1
done
curl -sSf -H 'Content-Type: application/json' "$url/v1/completions" -d '{"prompt": "The", "max_tokens": 4}' ||
  { cat serve.log; exit 1; }
