"""Configs: frozen dataclasses read from TOML or JSON; an unknown key is an error that names the nearest.

Types are checked as far as a config needs: numbers, strings, booleans, choices (`Literal`), tuples and
nested dataclasses.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from contextdesc.errors import InputError

T = TypeVar("T")


def from_dict(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build the dataclass `cls` from a mapping; `where` names its origin in messages."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: expected a table of settings, got {values!r}")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
            raise InputError(f"{where}: unknown key {key!r}; {hint}")
    for name, known in fields.items():
        required = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise InputError(f"{where}: key {name!r} is missing")
    return cls(**{key: _checked(hints[key], value, f"{where}: {key}") for key, value in values.items()})


def from_toml(cls: type[T], path: Path) -> T:
    """Read the dataclass `cls` from a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return from_dict(cls, tomllib.loads(text), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def _checked(hint: Any, value: Any, where: str) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where)  # type: ignore[arg-type]  # a class, not an instance
    if origin is Literal:
        if value not in options:
            raise InputError(f"{where} is {value!r}: one of {', '.join(map(str, options))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _checked(next(o for o in options if o is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{where} is {value!r}: expected a list")
        item = options[0]
        if options[-1] is not Ellipsis and len(value) != len(options):
            raise InputError(f"{where} has {len(value)} entries: expected {len(options)}")
        return tuple(_checked(item, v, where) for v in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {value!r}: expected a table")
        return {str(k): _checked(options[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise InputError(f"{where} is {value!r}: expected {hint.__name__}")
    return value
