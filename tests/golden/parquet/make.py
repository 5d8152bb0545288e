#!/usr/bin/env python3
"""Writes the Parquet files of this folder: pip install pyarrow; make.py"""

import os

import pyarrow
import pyarrow.parquet as parquet

os.makedirs("dataset", exist_ok=True)
TEXTS = ["the first text", "", "ünï✓ 漢字", "a\nline and\x00zero", "the first text"] * 5 + ["x" * 700, "last"]
NUMBERS = list(range(len(TEXTS)))
LISTS = [[{"a": i}] * (i % 3) for i in NUMBERS]


def table(required=False):
    field = pyarrow.field("text", pyarrow.string(), nullable=not required)
    return pyarrow.table(
        [pyarrow.array(LISTS), pyarrow.array([{"deep": {"er": t}} for t in TEXTS]), pyarrow.array(TEXTS), pyarrow.array(NUMBERS)],
        schema=pyarrow.schema(
            [
                pyarrow.field("lists", pyarrow.list_(pyarrow.struct([("a", pyarrow.int64())]))),
                pyarrow.field("nested", pyarrow.struct([("deep", pyarrow.struct([("er", pyarrow.string())]))])),
                field,
                pyarrow.field("number", pyarrow.int64()),
            ]
        ),
    )


def write(name, t, **options):
    # Small row groups and pages, so that there are several.
    parquet.write_table(t, name + ".parquet", row_group_size=10, data_page_size=64, write_batch_size=4, **options)


write("snappy", table())
write("zstd_v2", table(), compression="zstd", data_page_version="2.0")
write("gzip_plain", table(), compression="gzip", use_dictionary=False)
write("none_required", table(required=True), compression="none", use_dictionary=False)
write("none_v2_required", table(required=True), compression="none", data_page_version="2.0")
write("brotli", table(), compression="brotli")
write("delta", table(), use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"})
write("absent", pyarrow.table({"text": ["a", None, "c"]}))

# The texts of ../finetune as a data set, in two files.
for split, name, parts in (("train", "train", 2), ("valid", "validation", 1)):
    lines = open(f"../finetune/{split}.txt").read().splitlines()
    for part in range(parts):
        mine = lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]
        parquet.write_table(pyarrow.table({"text": mine}), f"dataset/{name}-{part:05}-of-{parts:05}.parquet")
