"""Reads settings from files, bodies and URIs, merges and checks them. No other code makes settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.config.checks import canonical, check
from tidegate.config.fields import AS_TABLE, field_of, from_text, hints_of, kebab, load, snake
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import URI_OPTIONS, SinkUri
from tidegate.config.ticdc import URI_TUNING
from tidegate.config.values import REDACTED
from tidegate.errors import InvalidInput


def config_from_json(data: Mapping[str, Any]) -> ReplicaConfig:
    """Settings from `ReplicaConfig.to_json` or an API body; raises InvalidInput naming the option."""
    config: ReplicaConfig = load(ReplicaConfig, data, "")
    config = canonical(config)
    check(config)
    return config


def load_config(path: Path | None, sink_uri: SinkUri) -> ReplicaConfig:
    """The settings of a feed from its TOML file (None: defaults) and its sink URI; raises InvalidInput."""
    return merge_config(read_toml(path) if path is not None else {}, sink_uri)


def read_toml(path: Path) -> dict[str, Any]:
    """A changefeed file as nested dicts, not checked yet."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            "the changefeed configuration cannot be read",
            where=str(path),
            why=os.strerror(error.errno or 0),
            fix="name a file that can be read",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "the changefeed configuration is not TOML",
            where=str(path),
            why=str(error),
            fix="correct the file",
        ) from error


def merge_config(data: Mapping[str, Any], sink_uri: SinkUri) -> ReplicaConfig:
    """The settings from file or API body `data`; parameters of the URI replace them."""
    merged = snake(data)
    for name, text in () if sink_uri.is_reader else sink_uri.options:
        if name in URI_TUNING:
            continue
        *sections, leaf = URI_OPTIONS[name]
        node, owner = merged, ReplicaConfig
        for section in sections:
            owner = hints_of(owner)[section]
            child = node.setdefault(section, {})
            if not isinstance(child, dict):
                raise InvalidInput(
                    f"'{kebab(section)}' must be a table", where="changefeed configuration", fix=AS_TABLE
                )
            node = child
        node[leaf] = from_text(hints_of(owner)[leaf], field_of(owner, leaf), text, name)
    if sink_uri.scheme == "kafka+ssl":
        merged.setdefault("sink", {}).setdefault("kafka_config", {})["enable_tls"] = True
    return config_from_json(merged)


def laid_over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Settings `base` (`ReplicaConfig.to_json`) with those of a file in their place; lists are replaced."""
    merged = dict(base)
    for name, value in snake(data).items():
        held = merged.get(name)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[name] = laid_over(held, value)
        else:
            merged[name] = value
    return merged


def with_secrets_of(data: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a client has read and sent back: hidden secrets are replaced by those of `held`."""
    return {
        name: with_secrets_of(value, held.get(name) or {})
        if isinstance(value, Mapping)
        else held.get(name, value)
        if value == REDACTED
        else value
        for name, value in data.items()
    }
