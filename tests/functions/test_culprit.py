"""What cannot travel is named, with the way to it, before there is a run."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobsdkError, MLClient, function
from tests.functions.project import work


class DataSet:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Hiding:
    def __getstate__(self) -> dict[str, Any]:
        return {"hidden": threading.Lock()}


class Trainer:
    shared = DataSet()

    def fit(self) -> object:
        return self.shared


dataset = DataSet()


def train() -> object:
    return dataset


def nested() -> object:
    def inner() -> object:
        return dataset.lock

    return inner()


def with_default(given: object = Trainer.shared) -> object:
    return given


def with_attribute() -> None: ...


with_attribute.cache = {"k": (1, dataset)}  # type: ignore[attr-defined]


def closing(value: object) -> Callable[[], object]:
    def inner() -> object:
        return value

    return inner


LOCK, GENERATOR = "'_thread.lock'", (number for number in range(3))


@pytest.mark.parametrize(
    ("fn", "args", "what", "way"),
    [
        (train, (), LOCK, "train.dataset.lock"),
        (nested, (), LOCK, "nested.dataset.lock"),
        (closing(dataset), (), LOCK, "closing.inner.value.lock"),
        (with_default, (), LOCK, "with_default (default 0).lock"),
        (with_attribute, (), LOCK, "with_attribute.cache['k'][1].lock"),
        (Trainer().fit, (), LOCK, "Trainer.fit.__self__.shared.lock"),
        (functools.partial(work.returned, dataset), (), LOCK, "returned.args[0].lock"),
        (work.returned, ([0, {"a": dataset}],), LOCK, "argument 0[1]['a'].lock"),
        (work.returned, (Slots(dataset),), LOCK, "argument 0.inner.lock"),
        (work.returned, (GENERATOR,), "'generator'", "argument 0"),
        (work.returned, (socket.socket(),), "'socket.socket'", "argument 0"),
        (work.returned, (open(os.devnull, "w"),), "'_io.TextIOWrapper'", "argument 0 (Cannot pickle files"),  # noqa: SIM115
        (work.returned, (sys._getframe(),), "'frame'", "argument 0"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_the_way_is_written_as_code(
    fn: Callable[..., Any], args: tuple[Any, ...], what: str, way: str, home: Path
) -> None:
    with pytest.raises(JobsdkError) as caught:
        function(fn, *args).submit()
    text = str(caught.value)
    assert f"reached through {way}" in text
    assert text.startswith(f"cannot pickle {what} reached")
    assert ("Fix: pass a list" if what == "'generator'" else "Fix: make it within ") in text
    assert len(text) <= 400
    assert not (home / "runs").exists()


def test_what_an_object_makes_only_while_it_is_pickled_is_told_by_the_argument() -> None:
    with pytest.raises(
        JobsdkError, match=r"'_thread\.lock', reached through argument 'value': TypeError: cannot pickle"
    ):
        function(work.returned, kwargs={"value": Hiding()}).job()


def test_many_objects_are_looked_at_once_each() -> None:
    """The lock is the last of 50 MB; each of them would be pickled again and again if it were sought by trying."""
    values: list[object] = [float(number) for number in range(2_000_000)]
    with pytest.raises(JobsdkError, match=r"argument 0\[2000000\]\.lock"):
        function(work.returned, [*values, dataset]).job()


def test_what_is_nested_too_deeply_is_told() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(JobsdkError, match=r"returned cannot be pickled: .* nested too deeply\. Fix: pass flatter data"):
        function(work.returned, deep).job()


def test_validation_says_it_too() -> None:
    with pytest.raises(JobsdkError, match=r"train\.dataset\.lock"):
        MLClient().jobs.validate(function(train))


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


class Calls:
    def __call__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (coroutine, r"coroutine is a coroutine function: .* Fix: a function that calls asyncio\.run\(\)"),
        (generator, r"generator is a generator function: .* Fix: a function that returns a list"),
        (functools.partial(generator), r"generator is a generator function"),
        (Calls(), r"Calls is a generator function"),
        ("train.py", r"function\(\) takes a function, not an object of type str"),
    ],
)
def test_what_is_no_plain_function_is_refused_at_once(fn: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        function(fn)


def test_wrong_arguments_and_options_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"even\(\): missing a required argument: 'number'"):
        function(work.even)
    with pytest.raises(TypeError, match=r"Fix: function\(even, ARGUMENTS...\), or @function\(\) with parentheses"):
        function(work.even)
    with pytest.raises(TypeError, match=r"'number'. Fix: pass the arguments of even\(number\)$"):
        function()(work.even).submit()
    with pytest.raises(TypeError, match=r"even\(\): got an unexpected keyword argument 'size'"):
        function(work.even, 1, kwargs={"size": 3})
    with pytest.raises(ValueError, match="did you mean 'instance_count'"):
        function(work.even, 1, instance_cout=2)
    with pytest.raises(ValueError, match="command: a function is called, no command"):
        function(work.even, 1, command="true")
    with pytest.raises(TypeError, match="is a decorator, and takes options only"):
        function(None, 1)  # type: ignore[call-overload]


def test_attributes_and_parameters_may_have_any_name() -> None:
    class Both:
        def __init__(self) -> None:
            self.fn, self.options = "theirs", "too"

        def __call__(self, /, **given: int) -> dict[str, int]:
            return given

    both = Both()
    decorated = function()(both)
    assert decorated(self=1) == {"self": 1}
    job = decorated.job(self=2, fn=3)
    assert (job.fn, job.kwargs) == (both, {"self": 2, "fn": 3})
