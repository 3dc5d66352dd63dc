"""Pickling a call: its function by value or by name, and what is known of the way it went."""

from __future__ import annotations

import dis
import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from jobsdk.functions.modules import Import, Project


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, which notes what it meets.

    Only one at a time: which modules go by value is known to all of cloudpickle.
    """

    def __init__(self, file: Any, project: Project) -> None:
        super().__init__(file, protocol=4)  # what Python 3.8 reads
        self._project = project
        self._registered: list[types.ModuleType] = []
        self.last: Any = None  # of the objects that it came to: if it fails, for this one
        self.modules: set[str] = set()  # whose content is named
        self.by_value: dict[int, Any] = {}  # functions, classes and modules that are not named, by their ids

    def again(self, file: Any) -> Pickler:
        """Another one for the same project."""
        return Pickler(file, self._project)

    def dump(self, obj: Any) -> None:
        try:
            super().dump(obj)
        finally:
            while self._registered:
                cloudpickle.unregister_pickle_by_value(self._registered.pop())

    def reducer_override(self, obj: Any) -> Any:
        """Called for every object that is no plain data."""
        self.last = obj
        kind = type(obj)
        if kind is _function_class():
            return _revived(), (obj.fn, _options(obj))
        if kind is functools.cached_property:  # before Python 3.12 it holds a lock
            state = {name: value for name, value in vars(obj).items() if name != "lock"}
            return kind, (obj.func,), state
        if kind is functools._lru_cache_wrapper and self._is_own(obj):
            self.by_value[id(obj)] = obj
            how = obj.cache_parameters()
            return kind, (obj.__wrapped__, how["maxsize"], how["typed"], functools._CacheInfo), vars(obj)
        is_module = isinstance(obj, types.ModuleType)
        if not is_module and not isinstance(obj, types.FunctionType | types.BuiltinFunctionType | type):
            own = getattr(obj, "__dict__", None)
            if type(own) is dict and isinstance(own.get("__module__"), str):
                self.modules.add(own["__module__"])  # it may be named, as a function with a cache is
            return super().reducer_override(obj)
        name = obj.__name__ if is_module else getattr(obj, "__module__", None)
        if isinstance(name, str):
            self._look_at(name)
        reduced = super().reducer_override(obj)
        is_named = reduced is NotImplemented if not is_module else not self._is_registered(name)
        if is_named and isinstance(name, str):
            self.modules.add(name)
        else:
            self.by_value[id(obj)] = obj
        return reduced

    def _look_at(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None or not self._project.submits(name) or self._is_registered(name):
            return
        cloudpickle.register_pickle_by_value(module)
        self._registered.append(module)

    def _is_own(self, obj: Any) -> bool:
        """Whether an object that would be named is not found by its name there."""
        module = getattr(obj, "__module__", None)
        if isinstance(module, str):
            self._look_at(module)
        return module == "__main__" or "<locals>" in str(obj.__qualname__) or self._is_registered(module)

    def _is_registered(self, name: Any) -> bool:
        return name in cloudpickle.list_registry_pickle_by_value()

    # -- what it has met -------------------------------------------------------------------------------------------

    def needed(self) -> set[str]:
        """The names of the modules that are needed to load it, and to run the functions in it."""
        found = set(self.modules)
        for code, package in self._codes():
            for one in imports_of(code):
                found.update([one.name] if not one.level else (), self._project.imported(one, package))
        return found

    def of_main(self) -> dict[str, Any]:
        """The functions and classes of `__main__` by their names there."""
        found, main = {}, sys.modules["__main__"]
        for value in self.by_value.values():
            name = getattr(value, "__qualname__", "")
            if getattr(value, "__module__", None) != "__main__" or not name.isidentifier():
                continue
            if name not in found or getattr(main, name, None) is value:  # a cell may have been run again
                found[name] = value
        return found

    def files(self) -> set[str]:
        """The files, or cells, of the functions that travel by value."""
        return {code.co_filename for code, _ in self._codes()}

    def _codes(self) -> Iterator[tuple[types.CodeType, str]]:
        """The code of functions, each with the package that it is in."""
        for function in self.by_value.values():
            if isinstance(function, types.FunctionType):
                yield function.__code__, str(function.__globals__.get("__package__") or "")


def imports_of(code: types.CodeType) -> Iterator[Import]:
    """What a function's code imports when it runs."""
    before: list[Any] = [None, None]
    name: str | None = None
    names: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, listed = before
            names = tuple(listed) if isinstance(listed, tuple) else ()
            name = str(step.argval)
            yield Import(name, names, level if isinstance(level, int) else 0, False)
        before = [before[1], step.argval]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_of(constant)


def _function_class() -> type:
    from jobsdk.functions import Function

    return Function


def _options(function: Any) -> bytes:
    try:
        return pickle.dumps(function.options)
    except Exception:  # something such as `warn` cannot travel: within the job it is the plain function
        return b""


def _revived() -> Callable[[Callable[..., Any], bytes], Any]:
    """What makes a `Function` again, or where jobsdk is not installed the plain one; it travels by value itself."""

    def revived(fn: Callable[..., Any], options: bytes) -> Any:
        import pickle

        try:
            from jobsdk.functions import Function

            return Function(fn, pickle.loads(options)) if options else fn  # nosec B301 # within a pickle already
        except ImportError:
            return fn

    return revived
