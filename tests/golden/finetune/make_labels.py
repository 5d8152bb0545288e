"""The reference of fine-tuning BERT and T5: plain PyTorch loops of transformers, in fp32, without dropout.

    python make_labels.py ..          # the folder with hf/; needs torch, transformers, safetensors

A word of BERT's texts is w<id>, its id in vocab.txt; T5's texts are numbers, which are token ids.
Writes the texts, the heads of the classifiers and labels.json.
"""
import csv
import json
import pathlib
import random
import sys

import numpy
import safetensors.torch
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
HF = pathlib.Path(sys.argv[1]) / "hf"
VOCAB, PAD, CLS, SEP, MASK = 131, 0, 2, 3, 4
LENGTH, BATCH, ACCUMULATION, EPOCHS, SEED = 16, 4, 2, 2, 42
LR, WARMUP, WEIGHT_DECAY, CLIP = 1e-3, 2, 0.1, 1.0
SOURCE, TARGET = 12, 8
draw = random.Random(7)


def some_ids(least, most):
    return [draw.randrange(5, VOCAB - 1) for _ in range(draw.randrange(least, most))]


def words(ids):
    return " ".join(f"w{i}" for i in ids)


def numbers(ids):
    return " ".join(map(str, ids))


def write_json_lines(name, rows):
    (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def encoded(first, second):
    """Of BERT's tokenizer with padding="max_length", truncation="longest_first"."""
    first, second = list(first), list(second or [])
    special = 3 if second else 2
    while len(first) + len(second) > LENGTH - special:
        (first if len(first) > len(second) else second).pop()
    ids = [CLS] + first + [SEP] + (second + [SEP] if second else [])
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1 if second else 0)
    more = LENGTH - len(ids)
    return ids + [PAD] * more, types + [0] * more, [1] * len(ids) + [0] * more


def trained(model, samples, valid, loss_of):
    """Losses and gradient norms of the updates, and the mean loss of `valid` after each epoch."""
    model.float().eval()
    groups = [dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=WEIGHT_DECAY),
              dict(params=[p for p in model.parameters() if p.dim() <= 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)
    update = BATCH * ACCUMULATION
    steps = EPOCHS * samples // update
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, steps)
    result = dict(losses=[], grad_norms=[], eval=[])
    for epoch in range(EPOCHS):
        generator = torch.Generator()
        generator.manual_seed(SEED + epoch)
        order = torch.randperm(samples, generator=generator).tolist()
        for first in range(0, samples, update):
            total = 0.0
            for part in range(first, first + update, BATCH):
                places = [epoch * samples + part + i for i in range(BATCH)]
                loss = loss_of(order[part:part + BATCH], places) / ACCUMULATION
                loss.backward()
                total += loss.item()
            result["losses"].append(total)
            result["grad_norms"].append(
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        with torch.no_grad():
            result["eval"].append(valid())
    return result


def write_head(folder, outputs):
    """A folder of a classifier, to which the test adds the tensors of hf/megatron-bert."""
    (FOLDER / folder).mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(outputs)
    head = {"classifier.weight": torch.randn(outputs, 48, generator=generator) * 0.3,
            "classifier.bias": torch.randn(outputs, generator=generator) * 0.1}
    safetensors.torch.save_file(head, FOLDER / folder / "head.safetensors")
    config = json.loads((HF / "megatron-bert" / "config.json").read_text())
    config["architectures"] = ["MegatronBertForSequenceClassification"]
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(outputs)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(outputs)}
    (FOLDER / folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = transformers.MegatronBertForSequenceClassification.from_pretrained(
        HF / "megatron-bert", num_labels=outputs)
    model.classifier.load_state_dict({name.split(".")[1]: value for name, value in head.items()})
    return model


def classifier(folder, outputs, problem, train, valid, label_type):
    model = write_head(folder, outputs)
    model.config.problem_type = problem

    def loss(rows):
        ids, types, mask = (torch.tensor(part) for part in
                            zip(*[encoded(first, second) for first, second, _ in rows]))
        labels = torch.tensor([label for _, _, label in rows], dtype=label_type)
        return model(input_ids=ids, token_type_ids=types, attention_mask=mask, labels=labels)

    def measured():
        each = [loss([row]) for row in valid]
        right = [int(out.logits.argmax()) == row[2] for out, row in zip(each, valid)]
        return [sum(out.loss.item() for out in each) / len(each), sum(right) / len(right)]

    return trained(model, len(train), measured, lambda at, _: loss([train[i] for i in at]).loss)


def masked():
    texts = [some_ids(8, 30) for _ in range(24)]
    valid_texts = [some_ids(8, 30) for _ in range(5)]

    def blocks_of(name, texts, multiple):
        while True:
            ids = sum(([CLS] + text + [SEP] for text in texts), [])
            blocks = [ids[i:i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]
            if len(blocks) % multiple == 0:
                break
            texts = texts[:-1]
        (FOLDER / name).write_text("".join(words(text) + "\n" for text in texts))
        return blocks

    train = blocks_of("masked_train.txt", texts, BATCH * ACCUMULATION)
    valid = blocks_of("masked_valid.txt", valid_texts, 1)
    model = transformers.MegatronBertForMaskedLM.from_pretrained(HF / "megatron-bert")

    def hidden(ids, seed):
        state = numpy.random.RandomState(seed)
        tokens, labels = list(ids), [-100] * len(ids)
        for i, token in enumerate(ids):
            if token in (PAD, CLS, SEP):
                continue
            if state.random_sample() >= 0.15:
                continue
            kind, other = state.random_sample(), int(state.random_sample() * VOCAB)
            labels[i] = token
            tokens[i] = MASK if kind < 0.8 else other if kind < 0.9 else token
        return tokens, labels

    def loss(blocks, places):
        tokens, labels = zip(*[hidden(block, SEED + place) for block, place in zip(blocks, places)])
        return model(input_ids=torch.tensor(tokens), labels=torch.tensor(labels)).loss

    def measured():
        counts = [sum(label >= 0 for label in hidden(block, SEED + i)[1]) for i, block in enumerate(valid)]
        sums = [loss([block], [i]).item() * n for i, (block, n) in enumerate(zip(valid, counts)) if n]
        return sum(sums) / sum(counts)

    return trained(model, len(train), measured, lambda at, places: loss([train[i] for i in at], places))


def pairs(name):
    train = [json.loads(line) for line in (FOLDER / "pairs_train.jsonl").read_text().splitlines()]
    valid = [json.loads(line) for line in (FOLDER / "pairs_valid.jsonl").read_text().splitlines()]
    model = transformers.T5ForConditionalGeneration.from_pretrained(HF / name)
    eos = model.config.eos_token_id

    def rows(texts, length):
        ids = [[int(i) for i in text.split()][:length - 1] + [eos] for text in texts]
        return [row + [PAD] * (length - len(row)) for row in ids]

    def loss(of):
        ids = torch.tensor(rows([row["text"] for row in of], SOURCE))
        labels = torch.tensor(rows([row["summary"] for row in of], TARGET))
        labels[labels == PAD] = -100
        return model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss, labels

    def measured():
        each = [loss([row]) for row in valid]
        counts = [int((labels >= 0).sum()) for _, labels in each]
        return sum(value.item() * n for (value, _), n in zip(each, counts)) / sum(counts)

    return trained(model, len(train), measured, lambda at, _: loss([train[i] for i in at])[0])


def main():
    torch.set_num_threads(1)
    (FOLDER / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(5, VOCAB)]) + "\n")
    result = dict(torch=torch.__version__, transformers=transformers.__version__)

    def labelled(count, label_of, is_pair):
        rows = []
        for _ in range(count):
            first, second = some_ids(2, 14), some_ids(2, 10) if is_pair else None
            rows.append((first, second, label_of(first)))
        return rows

    train, valid = (labelled(count, lambda ids: ids[0] % 3, True) for count in (24, 10))
    for name, rows in (("classes_train.csv", train), ("classes_valid.csv", valid)):
        with open(FOLDER / name, "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["id", "sentence1", "sentence2", "label"])
            for i, (first, second, label) in enumerate(rows):
                out.writerow([i, words(first), words(second), label])
    result["classes"] = classifier("classifier", 3, "single_label_classification", train, valid, torch.long)

    train, valid = (labelled(count, lambda ids: ids[0] / 64, False) for count in (24, 10))
    for name, rows in (("values_train.jsonl", train), ("values_valid.jsonl", valid)):
        write_json_lines(name, [dict(text=words(first), label=label) for first, _, label in rows])
    result["values"] = classifier("regressor", 1, "regression", train, valid, torch.float)

    train, valid = (labelled(count, lambda ids: [i % 2 for i in ids[:2]] + [len(ids) % 2], False) for count in (24, 10))
    for name, rows in (("marks_train.jsonl", train), ("marks_valid.jsonl", valid)):
        write_json_lines(name, [dict(text=words(first), label=label) for first, _, label in rows])
    result["marks"] = classifier("classifier", 3, "multi_label_classification", train, valid, torch.float)

    result["masked"] = masked()

    for name, count in (("pairs_train.jsonl", 24), ("pairs_valid.jsonl", 10)):
        write_json_lines(name, [dict(text=numbers(ids), summary=numbers(sorted(ids)[:6]))
                                for ids in (some_ids(2, 15) for _ in range(count))])
    for model in ("t5-v1.0", "t5-v1.1"):
        result[model] = pairs(model)
    (FOLDER / "labels.json").write_text(json.dumps(result, indent=1) + "\n")


main()
