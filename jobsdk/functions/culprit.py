"""What of a function cannot travel, and how it is reached."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jobsdk.functions.payload import name_of

_MOST = 2000  # objects that are tried


def explained(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
) -> str:
    """Why the call cannot be pickled, in words: the innermost object that cannot be, and the way to it."""
    name = name_of(function)
    roots = [(name, function)]
    roots += [(f"argument {index}", value) for index, value in enumerate(args)]
    roots += [(f"argument {key!r}", value) for key, value in kwargs.items()]
    search = _Search()
    for path, value in roots:
        if not _can(value):
            path, culprit = search.innermost(path, value)
            fix = f"make it within {name}, or pass what it is made of"
            if isinstance(culprit, types.GeneratorType):
                fix = "pass a list"
            return f"cannot pickle {_what(culprit)} reached through {path}. Fix: {fix}"
    return f"{name} cannot be pickled: {type(error).__name__}: {str(error)[:200]}"


def _what(value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"'{module}{kind.__qualname__}'"


def _can(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


class _Search:
    def __init__(self) -> None:
        self._tried: set[int] = set()

    def innermost(self, path: str, value: Any) -> tuple[str, Any]:
        """The first object below `value`, which cannot be pickled, that cannot be and has none below it that cannot."""
        self._tried.add(id(value))
        for step, child in _children(value):
            if id(child) not in self._tried and len(self._tried) < _MOST and not _can(child):
                return self.innermost(f"{path}{step}", child)
        return path, value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickling an object would go on to, each with how it is written behind the object."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield f"[{key!r}]", item
            yield f" (its key {key!r})", key
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, type):
        for key, item in list(vars(value).items()):
            yield f".{key}", getattr(item, "__func__", item)
    elif hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", getattr(value, "keywords", {})
    else:
        for key, item in list(getattr(value, "__dict__", {}).items()):
            yield f".{key}", item
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for key in (names,) if isinstance(names, str) else names:
                if hasattr(value, key):
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
