"""The examples run and print what they promise."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT


def run(name, *words):
    path = os.path.join(ROOT, "examples", "python", name + ".py")
    done = subprocess.run([sys.executable, path, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    first, last = map(float, re.search(r"^loss (\S+) -> (\S+)$", run("pretrain", folder, 80), re.M).groups())
    assert last < 0.2 * first
    return folder / "checkpoints"


def test_generate(pretrained):
    text = run("generate", pretrained, 5, 6, 7)
    assert "[5, 6, 7, 8, 9, 10, 11, 12] length" in text and "8 9 10 11 12" in text


def test_evaluate(pretrained):
    assert float(re.search(r"perplexity (\S+)", run("evaluate", pretrained, *range(5, 20))).group(1)) < 3


def test_serve(pretrained):
    assert "8 9 10 11" in run("serve", pretrained)


def test_finetune_lora(pretrained, tmp_path):
    text = run("finetune_lora", pretrained, tmp_path)
    first, last = map(float, re.search(r"^loss (\S+) -> (\S+)$", text, re.M).groups())
    assert last < 0.3 * first
    assert "[2, 4, 6, 8, 10, 12, 14, 16]" in text


def test_custom_loss():
    pytest.importorskip("torch")
    lines = re.findall(r"^\d+: focal loss (\S+) lm loss (\S+)$", run("custom_loss"), re.M)
    assert len(lines) == 10 and all(float(focal) < float(plain) for focal, plain in lines)


def test_custom_data():
    first, last = map(float, re.search(r"loss of the sums (\S+) -> (\S+)", run("custom_data")).groups())
    assert last < 0.5 * first
