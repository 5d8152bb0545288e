import numpy as np
import pytest

import megatron_cpp as mg


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_datasets_are_written_and_read(tmp_path, dtype):
    prefix = tmp_path / "corpus"
    documents = [[[1, 2, 3]], [[4], [5, 6]], [[]]]
    with mg.DatasetWriter(prefix, dtype=dtype) as writer:
        for document in documents:
            writer.add_document(*document)
    dataset = mg.IndexedDataset(prefix)
    assert len(dataset) == 4 and dataset.num_documents == 3 and dataset.num_tokens == 6
    assert dataset.dtype == np.dtype(dtype)
    assert [one.tolist() for one in dataset] == [[1, 2, 3], [4], [5, 6], []]
    assert dataset.document(1).tolist() == [4, 5, 6]
    assert dataset[-1].tolist() == []
    kept = dataset[0]
    assert not kept.flags.writeable
    del dataset
    assert kept.tolist() == [1, 2, 3]
    with pytest.raises(IndexError):
        mg.IndexedDataset(prefix)[4]


def test_a_failed_writer_leaves_nothing(tmp_path):
    prefix = tmp_path / "corpus"
    with pytest.raises(mg.MegatronError):
        with mg.DatasetWriter(prefix, dtype="uint16") as writer:
            writer.add_document([1, 70000])
    with pytest.raises(mg.IoError):
        mg.IndexedDataset(prefix)
    with pytest.raises(mg.DtypeError):
        mg.DatasetWriter(prefix, dtype="float32")
    writer = mg.DatasetWriter(prefix)
    writer.finalize()
    with pytest.raises(mg.ClosedError):
        writer.add_document([1])


def test_a_run_reads_what_was_written(tiny, tmp_path):
    with mg.DatasetWriter(tmp_path / "corpus") as writer:
        for first in range(100):
            writer.add_document([(first + i) % 60 for i in range(30)])
    del tiny["mock_data"]
    tiny["train_iters"] = 20
    with mg.Trainer(tiny, data_path=tmp_path / "corpus", split="1,0,0") as trainer:
        losses = [step.loss for step in trainer]
    assert losses[-1] < 0.7 * losses[0]


def test_tokenizers(tmp_path):
    tokenizer = mg.Tokenizer("NullTokenizer", vocab_size=60)
    assert tokenizer.encode("1 2 3") == [1, 2, 3] and tokenizer.decode([4, 5]) == "4 5"
    assert len(tokenizer) == tokenizer.vocab_size and tokenizer.type == "NullTokenizer"
    for wrong in (dict(tokenizer_type="NoTokenizer"), dict(vocab_file=tmp_path / "a", merge_file=tmp_path / "b")):
        with pytest.raises(mg.MegatronError):
            mg.Tokenizer(**wrong)
    with pytest.raises(mg.ConfigError):
        mg.Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(mg.ConfigError):
        tokenizer.special_id("unknown")
