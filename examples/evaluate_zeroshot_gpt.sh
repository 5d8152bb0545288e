#!/usr/bin/env bash
# Measures a GPT without training it: LAMBADA (accuracy of last words) or WIKITEXT103 (perplexity).
# Flags behind the script's name replace its own:
#
#   TASK=WIKITEXT103 VALID_DATA=wiki.test.tokens examples/evaluate_zeroshot_gpt.sh
set -euo pipefail

megatron=${MEGATRON:-megatron}
task=${TASK:-LAMBADA}
read -ra launch <<<"${LAUNCH:-}"

flags=(
  --task "$task"
  --valid-data "${VALID_DATA:-lambada_test.jsonl}"
  --load "${CHECKPOINT_PATH:-checkpoints/gpt2}"
  --tokenizer-type GPT2BPETokenizer
  --vocab-file "${VOCAB_FILE:-gpt2-vocab.json}"
  --merge-file "${MERGE_FILE:-gpt2-merges.txt}"
  --micro-batch-size 8
  --log-interval 10
)
if [[ $task == LAMBADA ]]; then
  flags+=(--strict-lambada)
fi

exec "$megatron" "${launch[@]}" evaluate "${flags[@]}" "$@"
