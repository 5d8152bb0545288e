"""The perplexity of a text under a checkpoint: evaluate.py CHECKPOINT ID ..."""

import math
import sys

import megatron_cpp as mg

with mg.Model.from_pretrained(sys.argv[1]) as model:
    chances = model.log_probabilities([int(word) for word in sys.argv[2:]])
print(f"perplexity {math.exp(-sum(chances) / len(chances)):.3f}")
