"""Datasets in .bin and .idx files, and tokenizers."""

import os

import numpy as np

from . import _core


class IndexedDataset:
    """Reads `<prefix>.bin` and `<prefix>.idx` through memory maps.

    len() counts the sequences, dataset[i] is one, an array that shares the mapped file, and
    document(i) joins those of a document. Raises IoError or FormatError.
    """

    def __init__(self, prefix):
        self._core = _core.IndexedDataset(os.fspath(prefix))

    def __len__(self):
        return len(self._core)

    def __getitem__(self, index):
        return self._core[index]

    def __iter__(self):
        return (self._core[index] for index in range(len(self)))

    def document(self, index):
        return self._core.document(index)

    @property
    def num_documents(self):
        return self._core.num_documents

    @property
    def num_tokens(self):
        return self._core.num_tokens

    @property
    def dtype(self):
        return np.dtype(self._core.dtype)


class DatasetWriter:
    """Writes `<prefix>.bin` and `<prefix>.idx`. They appear at the end of the with statement, or in
    finalize(); after an exception there are none.

        with DatasetWriter("corpus", dtype="uint16") as writer:
            for text in texts:
                writer.add_document(tokenizer.encode(text) + [tokenizer.eod])
    """

    def __init__(self, prefix, dtype="int32"):
        self._core = _core.DatasetWriter(os.fspath(prefix), np.dtype(dtype).name)

    def add_document(self, *sequences):
        """Appends a document of one or more sequences of ids."""
        for sequence in sequences:
            self.add_sequence(sequence)
        self.end_document()

    def add_sequence(self, tokens):
        array = np.asarray(tokens)
        if array.size and array.dtype.kind not in "iu":
            raise _core.DtypeError(f"tokens are {array.dtype}: ids are integers")
        self._core.add_sequence(np.ascontiguousarray(array, np.int64))

    def end_document(self):
        self._core.end_document()

    def finalize(self):
        self._core.finalize()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.finalize() if kind is None else self._core.close()


class Tokenizer:
    """Text to ids and back. May be used by several threads.

    The arguments are the flags of the program: tokenizer_type, vocab_file, merge_file,
    tokenizer_model, vocab_size, vocab_extra_ids.
    """

    def __init__(self, tokenizer_type="GPT2BPETokenizer", *, vocab_file="", merge_file="",
                 tokenizer_model="", vocab_size=0, vocab_extra_ids=0):
        self._core = _core.make_tokenizer(tokenizer_type, os.fspath(vocab_file),
                                          os.fspath(merge_file), os.fspath(tokenizer_model),
                                          vocab_size, vocab_extra_ids)

    @classmethod
    def from_pretrained(cls, folder):
        """The tokenizer of a folder of a Hugging Face model."""
        made = cls.__new__(cls)
        made._core = _core.tokenizer_of_folder(os.fspath(folder))
        return made

    def encode(self, text):
        return self._core.encode(text)

    def decode(self, ids):
        return self._core.decode([int(one) for one in ids])

    def piece(self, id):
        return self._core.piece(id)

    def id_of(self, piece):
        return self._core.id_of(piece)

    def special_id(self, name):
        """The id of cls, sep, mask, pad, bos, eos or eod; None if there is none."""
        return self._core.special_id(name)

    @property
    def eod(self):
        """The id that ends a document; None if there is none."""
        return self._core.eod

    @property
    def type(self):
        return self._core.type

    @property
    def vocab_size(self):
        return self._core.vocab_size

    def __len__(self):
        return self.vocab_size
