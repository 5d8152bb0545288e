"""gigatoken on a file of JSON lines: a peer of bench/preprocess.sh. It reads, cuts and encodes; it
writes no files. Compares its ids with a .bin of 16-bit ids that has the end-of-text id behind each
document, then prints "name wall user system" seconds of the first pass in the process, which meets
every word for the first time, and of the third.

Usage: preprocess_gigatoken.py {1,2} corpus.jsonl {vocab.json merges.txt | tokenizer.json -} ids.bin
"""
import json
import resource
import sys
import time

import awkward
import gigatoken
import numpy

threads, corpus, vocab_file, merge_file, ids_file = sys.argv[1:]


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

passes = []
for _ in range(3):
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    rows = tokenizer.encode_files(gigatoken.JsonlFileSource([corpus]), parallel=threads != "1")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    passes.append((wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))

counts = awkward.to_numpy(awkward.num(rows))
ids = awkward.to_numpy(awkward.flatten(rows)).astype(numpy.uint16)
ids = numpy.insert(ids, numpy.cumsum(counts)[counts > 0], known_ids["<|endoftext|>"])
if not numpy.array_equal(ids, numpy.fromfile(ids_file, dtype=numpy.uint16)):
    sys.exit("gigatoken gives other ids")
print(f"gigatoken{threads}-first", *passes[0])
print(f"gigatoken{threads}-again", *passes[2])
