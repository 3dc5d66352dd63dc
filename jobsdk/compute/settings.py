"""The settings of a type of compute: their names, what they mean, and which values are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jobsdk.job import durations


class Setting(NamedTuple):
    """What a setting means, what is wrong with a value ("" if nothing), and whether a job may set it too."""

    meaning: str
    wrong: Callable[[Any], str]
    of_job: bool = True


def must_be(form: str, fits: Callable[[Any], bool]) -> Callable[[Any], str]:
    """What is wrong with a value that must be of a form, such as "a text"."""
    return lambda value: "" if fits(value) else f"must be {form}"


TEXT = must_be("a text", lambda value: isinstance(value, str) and bool(value))
FLAG = must_be("true or false", lambda value: isinstance(value, bool))


def duration(value: Any) -> str:
    """What is wrong with a length of time."""
    found = durations.seconds(value)
    return "" if found is not None and found >= 0 else "must be seconds, or text such as 30s or 5m"


def meanings(settings: Mapping[str, Setting]) -> dict[str, str]:
    return {name: setting.meaning for name, setting in settings.items()}


def mistakes_in(known: Mapping[str, Setting], given: Mapping[str, Any], *, of_job: bool) -> Iterator[tuple[str, str]]:
    """What is wrong in what is given, with `of_job` by a job: (setting, words)."""
    from jobsdk.findings import meant, show

    names = [name for name, setting in known.items() if setting.of_job or not of_job]
    for name, value in given.items():
        if name not in names:
            yield str(name), "is no setting of a job. Fix: " + meant(name, names, f"there are {', '.join(names)}")
        elif why := known[name].wrong(value):
            yield name, why if why.startswith(("has ", "needs ")) else f"{why}, not {show(value)}"
