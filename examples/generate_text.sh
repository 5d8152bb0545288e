#!/usr/bin/env bash
# Continues prompts with a trained GPT: one prompt a line, from a file or from standard input. Flags
# behind the script's name replace its own:
#
#   echo "The river" | CHECKPOINT_PATH=checkpoints/gpt2 examples/generate_text.sh --top-p 0.9
set -euo pipefail

megatron=${MEGATRON:-megatron}
read -ra launch <<<"${LAUNCH:-}"

flags=(
  --load "${CHECKPOINT_PATH:-checkpoints/gpt2}"
  --tokenizer-type GPT2BPETokenizer
  --vocab-file "${VOCAB_FILE:-gpt2-vocab.json}"
  --merge-file "${MERGE_FILE:-gpt2-merges.txt}"
  --prompt-file "${PROMPT_FILE:--}"
  --max-new-tokens 64
  --temperature 1.0
  --top-p 0.9
)

exec "$megatron" "${launch[@]}" generate "${flags[@]}" "$@"
