"""BERT and T5 with Accelerate's interface: against plain torch loops, and against the program."""

import re

import numpy as np
import pytest

import megatron_cpp as mg

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from megatron_cpp import accelerate  # noqa: E402

STEPS = 10
RATE = 1e-2


def bert_config(kind, **fields):
    return kind(vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **fields)


def bert(name, **fields):
    kind = transformers.MegatronBertConfig if name.startswith("MegatronBert") else transformers.BertConfig
    return getattr(transformers, name)(bert_config(kind, **fields))


def t5(**fields):
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, decoder_start_token_id=0, **fields))


def masked_samples(generator, count=20, length=16, order=False):
    samples = []
    for first in range(count):
        ids = (5 + first + 3 * np.arange(length)) % 120 + 1
        labels = np.where(generator.random(length) < 0.3, ids, -100)
        labels[1] = ids[1]
        seen = length - first % 4
        sample = {"input_ids": np.where(labels >= 0, 4, ids), "labels": labels, "token_type_ids": np.arange(length) // 8,
                  "attention_mask": (np.arange(length) < seen).astype(np.int64)}
        if order:
            sample["next_sentence_label"] = np.array(first % 2)
        samples.append({name: torch.tensor(value) for name, value in sample.items()})
    return samples


def text_samples(labels, length=16):
    return [{"input_ids": (torch.arange(length) * (first + 1)) % 100 + 1, "labels": label,
             "attention_mask": (torch.arange(length) < length - first % 3).long()} for first, label in enumerate(labels)]


def pairs(count=20, length=16, targets=8):
    samples = []
    for first in range(count):
        ids = torch.tensor([(first + 3 * i) % 100 + 2 for i in range(length)])
        labels = ids[:targets].clone()
        labels[targets - first % 3:] = -100
        samples.append({"input_ids": ids, "attention_mask": (torch.arange(length) < length - first % 4).long(),
                        "labels": labels})
    return samples


def trained(model, samples, folder=None, **plugin):
    """The losses of the engine, from the weights of the model if there is a folder, and a first evaluation."""
    accelerator = accelerate.Accelerator(megatron_lm_plugin=accelerate.MegatronLMPlugin(**plugin))
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = accelerate.MegatronLMDummyScheduler(optimizer, total_num_steps=STEPS, warmup_num_steps=0)
    engine, _, batches, _ = accelerator.prepare(model, optimizer, loader, schedule)
    if folder is not None:
        model.save_pretrained(folder)
        accelerator.load_state(folder)
    engine.eval()
    evaluated = engine(**next(iter(batches))).loss.item()
    engine.train()
    losses = [engine(**batch).loss.item() for _ in range(2) for batch in batches]
    accelerator.free_memory()
    return losses, evaluated


def torch_losses(model, samples, loss_of):
    """A plain loop: Megatron-LM's parameters without decay, a linear schedule, clipping."""
    model.train()
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                   {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
                                  lr=RATE, weight_decay=0.1)
    losses = []
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    for step, batch in enumerate([batch for _ in range(2) for batch in loader]):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def own_loss(model, batch):
    return model(**batch).loss


def compare(model, samples, folder, loss_of=own_loss, **plugin):
    found, evaluated = trained(model, samples, folder, **plugin)
    expected = torch_losses(model, samples, loss_of)
    assert evaluated == pytest.approx(expected[0], rel=2e-5)
    assert found == pytest.approx(expected, rel=5e-5)
    assert found[5] != found[0]


@pytest.mark.parametrize("name", ["MegatronBertForMaskedLM", "BertForMaskedLM"])
def test_masked_tokens_of_a_bert(name, generator, tmp_path):
    compare(bert(name), masked_samples(generator), tmp_path)


def test_a_bert_with_the_order_of_sentences(generator, tmp_path):
    compare(bert("MegatronBertForPreTraining"), masked_samples(generator, order=True), tmp_path)


def test_a_classifier_of_texts(tmp_path):
    labels = {"classes": [torch.tensor(i % 3) for i in range(20)],
              "marks": [torch.tensor([i % 2, i % 3 == 0, 1.0]).float() for i in range(20)],
              "values": [torch.tensor(i / 10) for i in range(20)]}
    for name, given in labels.items():
        model = bert("BertForSequenceClassification", num_labels=1 if name == "values" else 3)
        compare(model, text_samples(given), tmp_path / name)


def test_pairs_of_texts_of_a_t5(tmp_path):
    compare(t5(), pairs(), tmp_path)


def test_a_loss_of_ones_own_of_a_t5(tmp_path):
    def smooth(losses, mask):  # [b, s]
        per_text = (losses * mask).sum(1) / mask.sum(1)
        return (per_text ** 1.5).mean()

    class OwnStep(accelerate.T5TrainStep):
        def get_loss_func(self):
            def loss_func(loss_mask, output_tensor):
                loss = smooth(output_tensor, loss_mask)
                return loss, {"lm loss": loss.detach()}

            return loss_func

    def loss_of(model, batch):
        labels = batch["labels"]
        losses = torch.nn.functional.cross_entropy(model(**batch).logits.transpose(1, 2), labels, reduction="none")
        return smooth(losses, (labels != -100).float())

    compare(t5(), pairs(), tmp_path, loss_of, custom_train_step_class=OwnStep)


def test_shorter_batches_are_padded():
    samples = pairs()
    shorter = [{**one, "input_ids": one["input_ids"][:12], "attention_mask": one["attention_mask"][:12],
                "labels": one["labels"][:6]} for one in samples]
    torch.manual_seed(1)
    given = trained(t5(), shorter)
    torch.manual_seed(1)
    padded = trained(t5(), shorter, encoder_seq_length=16, decoder_seq_length=8)
    assert given[0] == pytest.approx(padded[0], rel=1e-5)


def test_a_batch_of_the_scripts_own(generator):
    samples = masked_samples(generator)
    expected = trained(bert("BertForMaskedLM"), samples)[0]

    def get_batch(data_iterator):
        batch = next(data_iterator)
        labels = batch["labels"]
        return (batch["input_ids"], batch["token_type_ids"], None, labels != -100, labels, batch["attention_mask"])

    class OwnStep(accelerate.BertTrainStep):
        def get_batch_func(self, accelerator, megatron_dataset_flag):
            return get_batch

    assert trained(bert("BertForMaskedLM"), samples, custom_get_batch_function=get_batch)[0] == expected
    assert trained(bert("BertForMaskedLM"), samples, custom_train_step_class=OwnStep)[0] == expected


def indexed_losses(model, arguments):
    accelerator = accelerate.Accelerator(megatron_lm_plugin=accelerate.MegatronLMPlugin(eval_iters=1, eval_interval=6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = accelerate.MegatronLMDummyScheduler(optimizer, total_num_steps=6, warmup_num_steps=2)
    engine, *_ = accelerator.prepare(model, optimizer, schedule, accelerate.MegatronLMDummyDataLoader(**arguments))
    losses = [engine().losses for _ in range(6)]
    accelerator.free_memory()
    return losses


def test_indexed_data_give_the_losses_of_the_program(tmp_path):
    accelerate.set_seed(42)
    with mg.DatasetWriter(tmp_path / "sentences") as writer:
        for first in range(200):
            writer.add_document(*[[5 + (first + i) % 30 for i in range(12)] for _ in range(4)])
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(40)]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    data = dict(data_path=str(tmp_path / "sentences"), split="8,1,1", vocab_file=str(tmp_path / "vocab.txt"),
                tokenizer_type="BertWordPieceLowerCase", micro_batch_size=2, seq_length=24)
    shared = dict(**data, num_layers=2, hidden_size=32, num_attention_heads=4, ffn_hidden_size=64, train_iters=6, lr=RATE,
                  lr_decay_style="linear", lr_warmup_iters=2, weight_decay=0.1, seed=42, eval_iters=1, eval_interval=6,
                  log_interval=1, adam_beta2=0.999, hidden_dropout=0, attention_dropout=0)

    found = indexed_losses(bert("MegatronBertForPreTraining"), data)
    text = mg.run("pretrain-bert", **shared, max_position_embeddings=24, norm_epsilon=1e-12,
                  no_bias_gelu_fusion=True)
    expected = re.findall(r" lm loss: (\S+) \| sop loss: (\S+) \|", text)
    assert [(f"{one['lm loss']:.6E}", f"{one['sop loss']:.6E}") for one in found] == expected and len(expected) == 6

    of_t5 = dict(data, vocab_extra_ids=20, decoder_seq_length=16)
    found = indexed_losses(t5(), of_t5)
    text = mg.run("pretrain-t5", **{**shared, **of_t5}, kv_channels=8, max_position_embeddings=512,
                  position_embedding_type="relative", normalization="RMSNorm", norm_epsilon=1e-6,
                  disable_bias_linear=True, no_lm_head_bias=True, softmax_scale=1.0, relu=True, scale_decoder_outputs=True)
    expected = re.findall(r" lm loss: (\S+) \|", text)
    assert [f"{one['lm loss']:.6E}" for one in found] == expected and len(expected) == 6


def test_what_a_bert_and_a_t5_cannot_is_refused(generator):
    samples = masked_samples(generator)
    for options in (dict(custom_loss_function=lambda *_: None), dict(return_logits=True),
                    dict(custom_train_step_class=accelerate.GPTTrainStep)):
        with pytest.raises(mg.ConfigError):
            trained(bert("BertForMaskedLM"), samples, **options)
    with pytest.raises(mg.ConfigError, match="BertModel"):
        trained(bert("BertModel"), samples)
    with pytest.raises(mg.ConfigError, match="a t5"):
        accelerator = accelerate.Accelerator()
        model = t5()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        schedule = accelerate.MegatronLMDummyScheduler(optimizer, total_num_steps=4)
        engine, *_ = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(pairs(), batch_size=4), schedule)
        engine.megatron_generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=2)
