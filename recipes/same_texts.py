"""Compares the texts of two runs of `megatron generate --json`: with drafts and without.

    same_texts.py TEXTS OTHERS

They must be equal, but for sampled texts that part where a draw falls on the border between two
neighbouring ids: there the last bits of products decide, which depend on the number of rows. Prints
how many parted; the exit code is 1 if more than a tenth did, or one anywhere else.
"""

import json
import sys

MOST_APART = 3  # ids without probability may lie between the two


def ids_of(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)["ids"] for line in lines]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    texts, others = (ids_of(path) for path in sys.argv[1:])
    if len(texts) != len(others):
        sys.exit(f"same_texts.py: {len(texts)} texts, but {len(others)} others")
    parted = 0
    for number, (text, other) in enumerate(zip(texts, others), 1):
        if text == other:
            continue
        parted += 1
        pair = next(((a, b) for a, b in zip(text, other) if a != b), None)
        if pair is None or abs(pair[0] - pair[1]) > MOST_APART:
            sys.exit(f"same_texts.py: text {number} differs: {pair}")
    print(f"{len(texts) - parted} of {len(texts)} texts are equal, {parted} part between neighbouring ids")
    if parted * 10 > len(texts):
        sys.exit("same_texts.py: too many part")


main()
