"""accelerate.logging: a logger that speaks on the main process only."""

import logging
import os


class MultiProcessAdapter(logging.LoggerAdapter):
    """log(..., main_process_only=True) writes on the main process; False on all."""

    def log(self, level, msg, *args, **kwargs):
        main_only = kwargs.pop("main_process_only", True)
        kwargs.pop("in_order", None)
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self.isEnabledFor(level) and (not main_only or rank == size - 1):
            kwargs.setdefault("stacklevel", 2)
            msg, kwargs = self.process(msg, kwargs)
            self.logger.log(level, msg, *args, **kwargs)


def get_logger(name, log_level=None):
    logger = logging.getLogger(name)
    level = log_level or os.environ.get("ACCELERATE_LOG_LEVEL")
    if level is not None:
        logger.setLevel(level.upper())
    return MultiProcessAdapter(logger, {})
