"""gigatoken on a file of JSON lines: a peer of bench/preprocess.sh. It reads, cuts and encodes; numpy
then makes 16-bit ids with the end-of-text id behind each document and writes .bin and .idx, which
must equal those of <prefix>. Prints "name wall user system" seconds of the first pass in the
process, which meets every word for the first time, without and with the files, and of the third
pass.

Usage: preprocess_gigatoken.py {1,2} corpus.jsonl {vocab.json merges.txt | tokenizer.json -} prefix
"""
import filecmp
import json
import os
import resource
import struct
import sys
import time

import awkward
import gigatoken
import numpy

threads, corpus, vocab_file, merge_file, prefix = sys.argv[1:]


def gpt2_description():
    with open(vocab_file, encoding="utf-8") as file:
        vocab = json.load(file)
    with open(merge_file, encoding="utf-8") as file:
        merges = file.read().split("\n")[1:-1]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level, "model": model}


def read_description():
    with open(vocab_file, encoding="utf-8") as file:
        return json.load(file)


description = read_description() if merge_file == "-" else gpt2_description()
known_ids = dict(description["model"]["vocab"])
known_ids.update((token["content"], token["id"]) for token in description["added_tokens"])
tokenizer = gigatoken.Tokenizer.from_json(json.dumps(description))



def timed(action):
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = action()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    seconds = (wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)
    return numpy.array(seconds), result


def encode():
    return tokenizer.encode_files(gigatoken.JsonlFileSource([corpus]), parallel=threads != "1")


def write(path, *parts):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_dataset(rows, to):
    counts = awkward.to_numpy(awkward.num(rows))
    full = counts > 0  # empty documents have no sequence
    ids = awkward.to_numpy(awkward.flatten(rows)).astype(numpy.uint16)
    ids = numpy.insert(ids, numpy.cumsum(counts)[full], known_ids["<|endoftext|>"])
    write(to + ".bin", ids.data)
    lengths = (counts[full] + 1).astype(numpy.int32)
    pointers = 2 * (numpy.cumsum(lengths, dtype=numpy.int64) - lengths)
    documents = numpy.concatenate([[0], numpy.cumsum(full)]).astype(numpy.int64)
    header = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, len(lengths), len(documents))
    write(to + ".idx", header, lengths.data, pointers.data, documents.data)


first, encoded = timed(encode)
writing, _ = timed(lambda: write_dataset(encoded, prefix + ".peer"))
for extension in (".bin", ".idx"):
    if not filecmp.cmp(prefix + extension, prefix + ".peer" + extension, shallow=False):
        sys.exit(f"gigatoken gives another {extension}")
    os.remove(prefix + ".peer" + extension)
timed(encode)
third, _ = timed(encode)
print(f"gigatoken{threads}-first", *first)
print(f"gigatoken{threads}-files", *(first + writing))
print(f"gigatoken{threads}-again", *third)
