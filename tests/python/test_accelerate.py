"""The interface of Accelerate: a script of its documents, alone and on ranks, and against a plain torch loop."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import megatron_cpp as mg

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from megatron_cpp import accelerate  # noqa: E402
from megatron_cpp.accelerate import current  # noqa: E402
from megatron_cpp.accelerate.data import ShardedLoader  # noqa: E402

SCRIPT = os.path.join(ROOT, "tests", "python", "scripts", "accelerate_gpt.py")


def run(folder, *words, launcher=(), variables=None):
    os.makedirs(folder, exist_ok=True)
    done = subprocess.run([sys.executable, *launcher, SCRIPT, "--output_dir", str(folder), *words],
                          capture_output=True, text=True, env={**os.environ, **(variables or {})})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    with open(os.path.join(folder, "record.json"), encoding="utf-8") as file:
        return json.load(file), done.stdout + done.stderr


def launched(ranks):
    return ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks))


def layout(tp, pp, batches=1):
    return {"MEGATRON_LM_TP_DEGREE": str(tp), "MEGATRON_LM_PP_DEGREE": str(pp),
            "MEGATRON_LM_NUM_MICRO_BATCHES": str(batches)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return {loss: (*run(folder / (loss or "plain"), *([loss] if loss else [])), folder / (loss or "plain"))
            for loss in ("", "--custom_loss")}


def test_the_script_of_the_documents(alone):
    record, text, folder = alone[""]
    assert len(record["losses"]) == 22 and record["losses"][-1] < 0.8 * record["losses"][0]
    assert record["eval"][1] < record["eval"][0]
    assert "Building gpt model in the pre-training mode." in text and text.count("Preparing dataloader") == 2
    assert "epoch 1: perplexity:" in text
    with open(folder / "clm" / "metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert [line.get("eval_loss") for line in lines[1:]] == pytest.approx(record["eval"])
    assert [row[:3] for row in record["generated"]] == [[3, 6, 9], [1, 4, record["generated"][1][2]]]


def test_our_launchers_start_scripts(alone, tmp_path):
    for launcher in (["launch", "--nproc-per-node", "2"], ["accelerate", "launch", "--num_processes", "2"]):
        folder = tmp_path / launcher[0]
        done = subprocess.run([mg.program_path(), *launcher, SCRIPT, "--output_dir", str(folder), "--vocab_unit", "64",
                               "--num_train_epochs", "1"], capture_output=True, text=True,
                              env={**os.environ, **layout(2, 1), "MEGATRON_PYTHON": sys.executable})
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        with open(folder / "record.json", encoding="utf-8") as file:
            record = json.load(file)
        assert record["losses"][0] == pytest.approx(alone[""][0]["losses"][0], rel=1e-5)


@pytest.mark.parametrize("loss", ["", "--custom_loss"])
def test_ranks_give_the_losses_of_one(alone, tmp_path, loss):
    record, _ = run(tmp_path, "--vocab_unit", "64", *([loss] if loss else []), launcher=launched(4),
                    variables=layout(2, 2))
    assert record["losses"] == pytest.approx(alone[loss][0]["losses"], rel=1e-5)
    assert record["eval"] == pytest.approx(alone[loss][0]["eval"], rel=1e-5)
    assert record["generated"] == alone[loss][0]["generated"]


def test_replicas_and_microbatches_share_a_batch(tmp_path):
    """Two replicas of one microbatch, and one replica of two: the same global batches, in another order."""
    replicas, _ = run(tmp_path / "replicas", launcher=launched(2), variables=layout(1, 1))
    microbatches, _ = run(tmp_path / "microbatches", variables=layout(1, 1, 2))
    assert len(replicas["losses"]) == len(microbatches["losses"]) == 12
    assert replicas["losses"][0] == pytest.approx(microbatches["losses"][0], rel=1e-5)


def test_a_state_is_resumed(alone, tmp_path):
    record, _, folder = alone[""]
    more, _ = run(tmp_path, "--resume_from_checkpoint", str(folder / "state"))
    assert more["losses"][0] < 1.2 * record["losses"][-1]


def test_a_custom_loss_is_that_of_a_torch_loop(tmp_path):
    """The engine with a loss of the script, against transformers' GPT-2 with torch's AdamW."""
    accelerate.set_seed(3)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=128, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0)

    def weighted(losses, mask):  # [b, s]
        per_sample = (losses * mask).sum(1) / mask.sum(1)
        return (per_sample ** 1.5).mean()

    def of_engine(loss_mask, losses):
        loss = weighted(losses, loss_mask)
        return loss, {"lm loss": loss.detach()}

    plugin = accelerate.MegatronLMPlugin(custom_loss_function=of_engine)
    accelerator = accelerate.Accelerator(megatron_lm_plugin=plugin)
    samples = [{"input_ids": torch.tensor([(first + 5 * i) % 120 for i in range(16)])} for first in range(20)]
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    theirs = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = accelerate.MegatronLMDummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=0)
    model, _, batches, _ = accelerator.prepare(theirs, optimizer, loader, schedule)
    accelerator.save_state(tmp_path / "begin")
    mg.convert(tmp_path / "begin", tmp_path / "hf", saver="hf")
    found = [model(**batch).loss.item() for _ in range(2) for batch in batches]
    accelerator.free_memory()

    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    decayed = [p for p in theirs.parameters() if p.dim() > 1]
    others = [p for p in theirs.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2,
                                  weight_decay=0.1)
    expected = []
    for step, batch in enumerate([batch for _ in range(2) for batch in loader]):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 10)
        ids = batch["input_ids"]
        labels = torch.cat([ids[:, 1:], torch.full((4, 1), 127)], 1)
        losses = torch.nn.functional.cross_entropy(theirs(ids).logits.transpose(1, 2), labels, reduction="none")
        loss = weighted(losses, torch.ones_like(losses))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    assert found == pytest.approx(expected, rel=2e-5)


def test_indexed_data_give_the_losses_of_the_program(tmp_path):
    with mg.DatasetWriter(tmp_path / "corpus", dtype="uint16") as writer:
        for first in range(100):
            writer.add_document([(first + 7 * i) % 120 for i in range(30)])
    script = os.path.join(os.path.dirname(SCRIPT), "accelerate_indexed.py")
    done = subprocess.run([sys.executable, script, "--data_path", str(tmp_path / "corpus"), "--output",
                           str(tmp_path / "record.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    with open(tmp_path / "record.json", encoding="utf-8") as file:
        record = json.load(file)

    text = mg.run("pretrain-gpt", num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=16,
                  max_position_embeddings=16, micro_batch_size=2, train_iters=6, lr=1e-2, lr_decay_style="linear",
                  lr_warmup_iters=2, weight_decay=0.1, seed=42, data_path=tmp_path / "corpus", split="8,1,1",
                  tokenizer_type="NullTokenizer", vocab_size=127, make_vocab_size_divisible_by=64, eval_iters=3,
                  eval_interval=6, log_interval=1, adam_beta2=0.999)
    assert [f"{loss:.6E}" for loss in record["losses"]] == re.findall(r" lm loss: (\S+) \|", text)
    (validation,) = set(re.findall(r"validation loss at iteration 6 \| lm loss value: (\S+)", text))
    assert record["eval_loss"] == pytest.approx(float(validation), rel=1e-6)


def test_batches_are_dealt_in_turn():
    loader = torch.utils.data.DataLoader(list(range(2318)), batch_size=24)
    assert len(ShardedLoader(loader, 48, 0, 1)) == 49
    small = torch.utils.data.DataLoader(list(range(10)), batch_size=2)
    dealt = [[batch.tolist() for batch in ShardedLoader(small, 2, rank, 2)] for rank in range(2)]
    assert dealt == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    skipped = accelerate.skip_first_batches(ShardedLoader(small, 2, 0, 2), 1)
    assert [batch.tolist() for batch in skipped] == [[4, 5], [8, 9]] and len(skipped) == 2
    shuffled = ShardedLoader(torch.utils.data.DataLoader(list(range(10)), batch_size=2, shuffle=True), 2, 0, 1)
    epochs = [torch.cat(list(shuffled)).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(7))

    streamed = torch.utils.data.DataLoader(Stream(), batch_size=2)
    dealt = [[batch.tolist() for batch in ShardedLoader(streamed, 2, rank, 2)] for rank in range(2)]
    assert dealt == [[[0, 1], [4, 5]], [[2, 3], [6, 0]]]


def test_the_plugin_reads_the_launcher(monkeypatch):
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "4")
    monkeypatch.setenv("MEGATRON_LM_SEQUENCE_PARALLELISM", "True")
    plugin = accelerate.MegatronLMPlugin()
    assert (plugin.tp_degree, plugin.pp_degree, plugin.sequence_parallelism) == (4, 1, True)
    assert accelerate.MegatronLMPlugin(tp_degree=2).tp_degree == 2
    assert plugin.flags()["tensor_model_parallel_size"] == 4
    other = accelerate.MegatronLMPlugin(other_megatron_args={"position_embedding_type": "rotary",
                                                             "attention_head_type": "multiquery"})
    assert other.arguments() == {"position_embedding_type": "rope", "group_query_attention": True,
                                 "num_query_groups": 1}
    monkeypatch.setenv("MEGATRON_LM_SEQUENCE_PARALLELISM", "perhaps")
    with pytest.raises(mg.ConfigError):
        accelerate.MegatronLMPlugin()


def test_what_cannot_work_is_refused():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader([{"input_ids": torch.arange(8)}] * 4, batch_size=2)
    dummy = accelerate.MegatronLMDummyScheduler(optimizer, total_num_steps=4)
    for objects in ((model, loader, dummy), (model, optimizer, loader), (model, optimizer, dummy),
                    (model, optimizer, loader, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
                    (model, model, optimizer, loader, dummy),
                    (model, torch.optim.Adagrad(model.parameters()), loader, dummy)):
        with pytest.raises(mg.ConfigError):
            accelerate.Accelerator().prepare(*objects)
    for options in (dict(mixed_precision="int4"), dict(gradient_accumulation_steps=2), dict(log_with="unknown"),
                    dict(log_with="tensorboard"), dict(deepspeed_plugin=object())):
        with pytest.raises(mg.ConfigError):
            accelerate.Accelerator(**options)
    with pytest.raises(mg.ConfigError):
        accelerate.MegatronLMPlugin(custom_model_provider_function=lambda: None)


def test_tensors_are_gathered(tiny, monkeypatch):
    found = {}

    def rank(world):
        with mg.Trainer(tiny, world=world) as trainer:
            found[world.rank] = (trainer.data_parallel_gather([world.rank, 5.5]), trainer.data_parallel_mean([world.rank]))

    mg.run_ranks(2, rank)
    assert found == {0: ([0, 5.5, 1, 5.5], [0.5]), 1: ([0, 5.5, 1, 5.5], [0.5])}
    with mg.Trainer(tiny) as trainer:
        current.set_trainer(trainer)
        for values in (torch.tensor([1, -2, 2**40 + 3, -(2**45)]), torch.tensor(1.5), torch.ones(2, 3), torch.tensor([True])):
            gathered = accelerate.gather_across_data_parallel_groups({"a": [values]})["a"][0]
            assert gathered.dtype == values.dtype and torch.equal(gathered.reshape(values.shape), values)
        assert accelerate.avg_losses_across_data_parallel_group([torch.tensor(1.0), torch.tensor([2.0])]).tolist() == [1, 2]
    np.testing.assert_equal(accelerate.gather_across_data_parallel_groups("text"), "text")
