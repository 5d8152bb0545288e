#!/usr/bin/env bash
# Keeps the documents true:
# - every relative link in README.md, CONTRIBUTING.md, SECURITY.md and docs/ leads to a file, and a link whose text
#   is a name in backquotes ([`train`](../megatron/training/loop.cpp)) to a file that holds that name;
# - every path in backquotes in CONTRIBUTING.md that begins with a folder of the repository exists;
# - the picture of the floors in docs/architecture.md agrees with docs/floors.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() {
  echo "$1" >&2
  bad=1
}

# "<line>\t<text>\t<target>" for each link of a Markdown file; code blocks hold none.
links() {
  awk '
    /^ *```/ { in_code = !in_code }
    in_code { next }
    {
      rest = $0
      while (match(rest, /\[[^][]*\]\([^() ]+\)/)) {
        link = substr(rest, RSTART + 1, RLENGTH - 2)
        rest = substr(rest, RSTART + RLENGTH)
        cut = index(link, "](")
        printf "%d\t%s\t%s\n", FNR, substr(link, 1, cut - 1), substr(link, cut + 2)
      }
    }' "$1"
}

while IFS= read -r document; do
  while IFS=$'\t' read -r line text target; do
    case $target in *://* | mailto:* | \#*) continue ;; esac
    path=$(dirname "$document")/${target%%#*}
    if [[ ! -e $path ]]; then
      complain "$document:$line: $target does not exist"
    elif [[ -f $path && $text =~ ^\`([A-Za-z_][A-Za-z0-9_:]*)\`$ ]]; then
      name=${BASH_REMATCH[1]##*::}
      grep -qwF -- "$name" "$path" || complain "$document:$line: $target does not hold $name"
    fi
  done < <(links "$document")
done < <(printf '%s\n' README.md CONTRIBUTING.md SECURITY.md; find docs -name '*.md' | sort)

# "<line>\t<path>" for each path in backquotes; {h,cpp} stands for two files, <x> for any name.
paths() {
  awk '
    {
      rest = $0
      while (match(rest, /`(megatron|tests|scripts|cmake|docs|examples|bench|include)\/[^` ]*`/)) {
        path = substr(rest, RSTART + 1, RLENGTH - 2)
        rest = substr(rest, RSTART + RLENGTH)
        sub(/[^/]*<.*/, "", path)  # the folder of a name that the reader chooses
        if (match(path, /\{h,cpp\}$/)) {
          stem = substr(path, 1, RSTART - 1)
          printf "%d\t%sh\n%d\t%scpp\n", FNR, stem, FNR, stem
        } else {
          printf "%d\t%s\n", FNR, path
        }
      }
    }' "$1"
}

while IFS=$'\t' read -r line path; do
  [[ -e $path ]] || complain "CONTRIBUTING.md:$line: $path does not exist"
done < <(paths CONTRIBUTING.md)

# In the picture, a line "12  cli  | ..." names the folders of floor 12 before the bar.
picture() {
  awk '/^ *[0-9]+ +[a-z].*\|/ {
         floor = $1
         for (i = 2; $i != "|"; ++i) print floor, $i
       }' docs/architecture.md
}
difference=$(diff <(grep -E '^[0-9]+ ' docs/floors.txt | sort) <(picture | sort)) || {
  complain "docs/floors.txt (<) and the picture in docs/architecture.md (>) differ:"
  complain "$difference"
}

# The version of CMakeLists.txt stands in these files, too.
version=$(sed -n 's/^project(megatron VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
while IFS='|' read -r file line; do
  grep -q "^$line" "$file" || complain "$file: a line \"$line\" is missing, the version of CMakeLists.txt"
done <<END
CHANGELOG.md|## $version
CITATION.cff|version: $version
python/megatron_cpp/__init__.py|__version__ = "$version"
END

exit "$bad"
