from __future__ import annotations

import dataclasses
import enum
import threading

LOCK = threading.Lock()  # cannot be pickled, and need not be


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Color(enum.Enum):
    RED = 1


class WrongShape(Exception):
    pass


class TwoPart(Exception):
    """Can be pickled and not be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
