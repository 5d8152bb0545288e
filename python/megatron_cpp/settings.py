"""Settings of a run, by the names of the program's flags."""

import argparse
import os
from collections.abc import Mapping

from ._core import ConfigError


def settings_from(*sources, **flags):
    """One dict of flags, of any number of sources; a later one replaces an earlier one.

    A source is a mapping, an argparse.Namespace, or the path of a YAML file with a mapping. Names
    may have - or _. None leaves a flag out, as False does with a flag that has no value; a list
    gives a flag several words.
    """
    merged = {}
    for source in (*sources, flags):
        if source is None:
            continue
        if isinstance(source, (str, os.PathLike)):
            source = _of_yaml(source)
        elif isinstance(source, argparse.Namespace):
            source = vars(source)
        if not isinstance(source, Mapping):
            raise ConfigError(f"settings must be a mapping, a namespace or a YAML file, not a {type(source).__name__}")
        for name, value in source.items():
            merged[str(name).lstrip("-").replace("_", "-")] = _plain(name, value)
    return merged


def _plain(name, value):
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [os.fspath(word) if isinstance(word, os.PathLike) else word for word in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise ConfigError(f"the value of {name} must be a bool, a number, a text or a list of them")


def _of_yaml(path):
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{path}: settings in YAML need the package pyyaml") from error
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file) or {}


def words_of(settings):
    """The flags as words of a command line."""
    words = []
    for name, value in settings.items():
        if value is None or value is False:
            continue
        words.append("--" + name)
        if value is True:
            continue
        words += [str(word) for word in value] if isinstance(value, (list, tuple)) else [str(value)]
    return words
