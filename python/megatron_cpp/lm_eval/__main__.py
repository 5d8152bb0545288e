"""lm_eval, with the model megatron_cpp."""

from lm_eval.__main__ import cli_evaluate

import megatron_cpp.lm_eval  # noqa: F401  registers it

cli_evaluate()
