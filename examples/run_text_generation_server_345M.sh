#!/usr/bin/env bash
# Answers HTTP requests with a GPT on one GPU: http://localhost:5000/api, and the interface of OpenAI.
# `megatron text-generation-cli localhost:5000` asks it. Flags behind the script's name replace its own:
#
#   CHECKPOINT_PATH=checkpoints/gpt2 examples/run_text_generation_server_345M.sh --port 8000
set -euo pipefail

megatron=${MEGATRON:-megatron}
read -ra launch <<<"${LAUNCH:-}"

flags=(
  --load "${CHECKPOINT_PATH:-checkpoints/gpt2_345m}"
  --tokenizer-type GPT2BPETokenizer
  --vocab-file "${VOCAB_FILE:-gpt2-vocab.json}"
  --merge-file "${MERGE_FILE:-gpt2-merges.txt}"
  --port 5000
)

exec "$megatron" "${launch[@]}" serve "${flags[@]}" "$@"
