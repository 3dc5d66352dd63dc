from __future__ import annotations

import importlib
import os
import pickle
from pathlib import Path
from typing import Any

from . import models
from .models.shapes import LOCK, Point, TwoPart, WrongShape


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


def moved(point: Point, by: int) -> Point:
    with LOCK:
        return Point(point.x + by, point.y)


def late() -> str:
    from .models.later import WORD

    return WORD


def named(name: str) -> str:
    return str(importlib.import_module(f"{__package__}.plugin_{name}").NAME)


def same_classes(point: Point, color: models.Color) -> list[bool]:
    """Whether a class is one and the same, however it is reached."""
    from .models import shapes

    again = pickle.loads(pickle.dumps(point))
    return [isinstance(point, shapes.Point), again == point, type(again) is Point, color is shapes.Color.RED]


def share(base: int) -> tuple[int, Point]:
    """What each rank gives, and reports."""
    from jobsdk.train import report

    report({"given": base + int(os.environ["RANK"])})
    return int(os.environ["RANK"]), Point(base + int(os.environ["RANK"]))


def first_fails(marker: str) -> str:
    """Fails until the job is started again."""
    if os.environ["JOBSDK_RESTART_COUNT"] == "0":
        raise WrongShape("the first time")
    return f"{marker} {os.environ['JOBSDK_RESTART_COUNT']}"


def last_fails() -> str:
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        raise WrongShape("of the last rank")
    return "fine"


def two_parts() -> None:
    raise TwoPart("one", "two")


def caused() -> None:
    try:
        1 // 0  # noqa: B018
    except ZeroDivisionError as error:
        raise WrongShape("no shape") from error


def waits(folder: str, number: int = 0) -> int:
    """Leaves a mark while it runs, which says how many do; until there is a file `go`."""
    import time

    mark = Path(folder, f"running-{number}")
    mark.touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    with open(Path(folder, "counts"), "a") as file:
        file.write(f"{len(list(Path(folder).glob('running-*')))}\n")
    mark.unlink()
    return number


def returned(value: Any) -> Any:
    return value
