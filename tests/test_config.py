from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from contextdesc.config import from_dict, from_toml
from contextdesc.errors import InputError


@dataclass(frozen=True)
class Inner:
    width: int = 3


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()
    base: str | None = None
    inner: Inner = field(default_factory=Inner)


def test_nested_values_are_built_and_checked() -> None:
    config = from_dict(Outer, {"name": "x", "rate": 1, "sizes": [1, 2], "inner": {"width": 5}}, "test")
    assert config == Outer("x", 1.0, "a", (1, 2), None, Inner(5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nmae": "x"}, "test: unknown key 'nmae'; did you mean 'name'?"),
        ({"name": "x", "inner": {"wdith": 3}}, "test: inner: unknown key 'wdith'; did you mean 'width'?"),
        ({}, "test: key 'name' is missing"),
        ({"name": 3}, "test: name is 3: expected str"),
        ({"name": "x", "kind": "c"}, "test: kind is 'c': one of a, b"),
        ({"name": "x", "rate": "fast"}, "test: rate is 'fast': expected float"),
        ({"name": "x", "sizes": 3}, "test: sizes is 3: expected a list"),
        ({"name": "x", "sizes": [True]}, "test: sizes is True: expected int"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_dict(Outer, values, "test")
    assert str(caught.value) == message


def test_toml_files(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('name = "x"\n[inner]\nwidth = 7\n')
    assert from_toml(Outer, path).inner.width == 7
    path.write_text("name = ")
    with pytest.raises(InputError, match=r"c.toml: not valid TOML"):
        from_toml(Outer, path)
    with pytest.raises(InputError, match=r"nowhere.toml: cannot be read"):
        from_toml(Outer, tmp_path / "nowhere.toml")
