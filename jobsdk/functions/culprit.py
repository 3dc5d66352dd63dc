"""What of a call cannot travel, and how it is reached."""

from __future__ import annotations

import collections
import functools
import io
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobsdk.functions.names import name_of

if TYPE_CHECKING:
    from jobsdk.functions.pickling import Pickler

_MOST = 3_000_000  # objects that are looked at
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray))
_LISTS = (list, tuple, set, frozenset, collections.deque)

#: An object with the way to it: the way to what holds it, and the step from there.
_Way = tuple[Any, "_Way | None", str]


def explained(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    pickler: Pickler,
    error: BaseException,
) -> str:
    """Why the call cannot be pickled, in words. `pickler` is the one that has failed, with `error`."""
    name, culprit = name_of(function), pickler.last
    roots = [(name, function)]
    roots += [(f"argument {index}", value) for index, value in enumerate(args)]
    roots += [(f"argument {key!r}", value) for key, value in kwargs.items()]
    fix = f"make it within {name}, or pass what it is made of"
    if isinstance(culprit, types.GeneratorType):
        fix = "pass a list"
    elif isinstance(error.__cause__ or error, RecursionError):
        return f"{name} cannot be pickled: it, or what it refers to, is nested too deeply. Fix: pass flatter data"
    path = _path(roots, culprit, pickler.by_value)
    if path is None:
        why = f"{type(error).__name__}: {str(error)[:150]}"
        return f"{name} cannot be pickled: {_what(culprit)}{_root(roots, pickler)}: {why}. Fix: {fix}"
    why = "" if "cannot pickle" in str(error) else f" ({str(error)[:100]})"
    return f"cannot pickle {_what(culprit)} reached through {path}{why}. Fix: {fix}"


def _what(value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"'{module}{kind.__qualname__}'"


def _root(roots: Sequence[tuple[str, Any]], pickler: Pickler) -> str:
    """The first of several roots that cannot be pickled alone."""
    for name, value in roots[1:]:
        try:
            pickler.again(io.BytesIO()).dump(value)
        except Exception:
            return f", reached through {name}"
    return ""


def _path(roots: Sequence[tuple[str, Any]], culprit: Any, by_value: Mapping[int, Any]) -> str | None:
    """The shortest way to an object, as one would write it; None where there is none."""
    seen: set[int] = set()
    kept: list[Any] = []  # so that no id is used twice
    waiting: collections.deque[_Way] = collections.deque((value, None, name) for name, value in roots)
    while waiting and len(seen) < _MOST:
        way = waiting.popleft()
        value = way[0]
        if value is culprit:
            return _written(way)
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if type(value) in _LISTS:  # often very many
            waiting.extend((item, way, f"[{index}]") for index, item in enumerate(value) if type(item) not in _PLAIN)
            continue
        steps = _children(value, by_value)
        waiting.extend((child, way, step) for step, child in steps if type(child) not in _PLAIN)
    return None


def _written(way: _Way) -> str:
    steps: list[str] = []
    here: _Way | None = way
    while here is not None:
        steps.append(here[2])
        here = here[1]
    text = "".join(reversed(steps))
    return text if len(text) <= 200 else f"{text[:90]} ... {text[-90:]}"


def _children(value: Any, by_value: Mapping[int, Any]) -> Iterator[tuple[str, Any]]:
    """What pickling an object goes on to, each with how it is written behind the object."""
    from jobsdk.functions import Function

    if isinstance(value, types.FunctionType):
        if id(value) in by_value:
            yield from _of_function(value)
    elif isinstance(value, types.ModuleType | type):
        if id(value) in by_value:
            for key, item in list(vars(value).items()):
                yield f".{key}", getattr(item, "__func__", item)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, property):
        yield from (("", part) for part in (value.fget, value.fset, value.fdel))
    elif type(value) is Function:
        yield "", value.fn
    else:
        yield from _of_container(value)
        yield from _of_object(value)


def _of_container(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            if type(item) not in _PLAIN:
                yield f"[{reprlib.repr(key)}]", item
            if type(key) not in _PLAIN:
                yield f" (its key {reprlib.repr(key)})", key
    elif isinstance(value, _LISTS):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    yield "", type(value)
    yield from ((f".{key}", item) for key, item in list(getattr(value, "__dict__", {}).items()))
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for key in (names,) if isinstance(names, str) else names:
            if isinstance(kind.__dict__.get(key), types.MemberDescriptorType) and hasattr(value, key):
                yield f".{key}", getattr(value, key)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What it takes along: variables around it, globals that its code names, defaults, attributes."""
    code, closure = function.__code__, function.__closure__ or ()
    for name, cell in zip(code.co_freevars, closure, strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:
            pass  # not set yet
    for name in _named(code):
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name]
    for index, item in enumerate(function.__defaults__ or ()):
        yield f" (default {index})", item
    for key, item in (function.__kwdefaults__ or {}).items():
        yield f" (default of {key})", item
    for key, item in vars(function).items():
        yield f".{key}", item


def _named(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _named(constant)
    return list(dict.fromkeys(names))
