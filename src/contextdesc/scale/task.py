"""The contract between the work and those who do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from contextdesc.formats.manifest import Shard

if TYPE_CHECKING:
    import h5py


class Task(Protocol):
    """What is done with each item. It is pickled to other processes, which open it once."""

    def open(self) -> Callable[[str, Any], Any]:
        """Load what the work needs; the function makes the result of an item from its name and the item."""
        ...

    def write(self, file: h5py.File, name: str, result: Any) -> None:
        """Put a result into a shard."""
        ...


@dataclass(frozen=True)
class Piece:
    """A shard to make, or one with a checksum to verify and to make again if it differs.

    Attributes:
        items: the members of the shard, by name.
        careful: leave a note of every item before it is begun, since a process died on one of them.
        skip: items that are given up, with their reason.
    """

    shard: Shard
    items: Mapping[str, Any]
    careful: bool = False
    skip: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Items that were done, each with the reason if it failed."""

    outcomes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Finished:
    """A shard is done: the driver gives the file `part` its name; None if the shard was whole before."""

    shard: Shard
    part: str | None


@dataclass(frozen=True)
class Broken:
    """The work as a whole cannot be done: a model that does not load, a full disk."""

    reason: str


@dataclass(frozen=True)
class Died:
    """The process that had the piece is gone."""

    piece: Piece
    reason: str


Message: TypeAlias = Progress | Finished | Broken | Died
