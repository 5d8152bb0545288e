"""Writes expected.json: final hidden states of the models in tests/golden/hf as transformers
computes them, pooled over each text.

python make.py     (torch 2.15.0, transformers 5.24.0)
"""

import json
import pathlib

import torch
import transformers

TEXTS = [[5, 17, 9, 4, 4, 1, 2, 3], [7], [30, 2, 11, 40, 8]]
MODELS = ["gpt2", "llama-gqa", "gemma2", "megatron-bert"]


def main() -> None:
    golden = pathlib.Path(__file__).parent.parent / "hf"
    result = {"texts": TEXTS, "models": {}}
    for name in MODELS:
        model = transformers.AutoModel.from_pretrained(golden / name, dtype=torch.float32)
        model.eval()
        pooled = {"mean": [], "last": [], "cls": []}
        for text in TEXTS:
            with torch.no_grad():
                states = model(input_ids=torch.tensor([text])).last_hidden_state[0].double()
            for how, row in (("mean", states.mean(0)), ("last", states[-1]), ("cls", states[0])):
                pooled[how].append([round(value, 7) for value in row.tolist()])
        result["models"][name] = pooled
    place = pathlib.Path(__file__).with_name("expected.json")
    place.write_text(json.dumps(result, separators=(",", ":")).replace('],"', '],\n"') + "\n")


main()
