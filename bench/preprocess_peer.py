"""The plain Python loop over JSON lines with transformers' GPT-2 tokenizer: the peer of
bench/preprocess.sh. Two processes, in order, 16-bit ids with the end-of-text id after each document.

Usage: preprocess_peer.py {python,rust} corpus.jsonl vocab.json merges.txt out.bin
"""
import array
import json
import multiprocessing
import os
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from transformers import GPT2Tokenizer, GPT2TokenizerFast

kind, corpus, vocab, merges, out = sys.argv[1:]


def prepare():
    global encode, eod
    if kind == "python":
        tokenizer = GPT2Tokenizer(vocab, merges)
        # Without the search for special tokens in the text, which only makes it slower.
        encode = lambda text: tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text))
    else:
        tokenizer = GPT2TokenizerFast(vocab, merges)
        encode = lambda text: tokenizer(text)["input_ids"]
    eod = tokenizer.convert_tokens_to_ids("<|endoftext|>")


def encode_line(line):
    ids = encode(json.loads(line)["text"])
    if ids:
        ids.append(eod)
    return ids


if __name__ == "__main__":
    with open(corpus, encoding="utf-8") as lines, open(out, "wb") as file:
        with multiprocessing.Pool(2, initializer=prepare) as pool:
            for ids in pool.imap(encode_line, lines, 32):
                array.array("H", ids).tofile(file)
