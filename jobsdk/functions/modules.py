"""The modules of the user's own project that a function needs: found by their imports, sent as files.

They are imported again where the function runs, so that classes are the same there whichever way they are reached, and
can be pickled by name. A module whose import needs jobsdk, which need not be there, travels by value instead: what of
it the function uses is in the pickle.
"""

from __future__ import annotations

import ast
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from jobsdk.functions import call

#: What imports modules by names that are made at run time: then the whole package is taken along.
_MAKES_NAMES = frozenset(("import_module", "__import__", "iter_modules", "walk_packages"))
#: What of jobsdk is for ranks, and no sign of a module that submits.
_FOR_RANKS = "jobsdk.train"


class Module(NamedTuple):
    """An own module: `file` is None for a package without `__init__.py`, `folders` are where its submodules are."""

    name: str
    file: str | None
    folders: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where its file lies below a folder of modules."""
        place = self.name.replace(".", "/")
        return f"{place}/__init__.py" if self.folders else f"{place}.py"


class Import(NamedTuple):
    """`import name`, or `from name import ...` with the names; `at_once`: done when the module is imported."""

    name: str
    names: tuple[str, ...]
    level: int
    at_once: bool


class Project:
    """The user's own modules, as they are on disk now."""

    def __init__(self) -> None:
        self._located: dict[str, Module | None] = {}
        self._submits: dict[str, bool] = {}

    def find(self, name: str) -> Module | None:
        """The own module of a name; None for one of an installation, or none."""
        if name not in self._located:
            self._located[name] = None  # a package that looks for itself
            self._located[name] = self._locate(name)
        return self._located[name]

    def _locate(self, name: str) -> Module | None:
        top, _, rest = name.partition(".")
        if top in sys.stdlib_module_names or top in ("__main__", "jobsdk"):
            return None
        loaded = sys.modules.get(name)
        if loaded is not None:
            file, folders = getattr(loaded, "__file__", None), getattr(loaded, "__path__", ())
            return _own(name, file, folders)
        if not rest:
            return _unloaded(name)
        parent, _, last = name.rpartition(".")
        above = self.find(parent)
        for folder in above.folders if above is not None else ():
            place = os.path.join(folder, last)
            if os.path.isfile(init := os.path.join(place, "__init__.py")):
                return _own(name, init, (place,))
            if os.path.isfile(f"{place}.py"):
                return _own(name, f"{place}.py", ())
            if os.path.isdir(place):
                return _own(name, None, (place,))
        return None

    def needed(self, names: Iterable[str]) -> dict[str, Module]:
        """The own ones of modules of these names, and all own modules that they import, by name."""
        found: dict[str, Module] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            module = self.find(name) if name not in found else None
            if module is None:
                continue
            found[name] = module
            waiting += _parents(name)
            if module.file is not None:
                waiting += self._imported(module, at_once=False)
                if _Source.of(module.file).makes_names and (package := _package(module)):
                    waiting += self._below(package)
        return found

    def submits(self, name: str) -> bool:
        """Whether to import a module means to import jobsdk, too."""
        if name not in self._submits:
            self._submits[name] = False  # it may come back to itself
            self._submits[name] = self._is_submitting(name)
        return self._submits[name]

    def _is_submitting(self, name: str) -> bool:
        module = self.find(name)
        if module is None or module.file is None:
            return module is not None and any(map(self.submits, _parents(name)))
        if any(one.at_once and _is_of_submitting(one) for one in _Source.of(module.file).imports):
            return True
        return any(map(self.submits, [*_parents(name), *self._imported(module, at_once=True)]))

    def imported(self, one: Import, package: str) -> list[str]:
        """The modules that an import within `package` may mean."""
        base = one.name
        if one.level:
            within = package.split(".")
            base = ".".join([*within[: len(within) - one.level + 1], *([one.name] if one.name else [])])
        if not base:
            return []
        return [base, *(f"{base}.{name}" for name in one.names)] if self.find(base) is not None else []

    def _imported(self, module: Module, *, at_once: bool) -> Iterator[str]:
        assert module.file is not None
        for one in _Source.of(module.file).imports:
            if one.at_once or not at_once:
                yield from self.imported(one, _package(module))

    def _below(self, package: str) -> Iterator[str]:
        """All modules of a package, at any depth."""
        module = self.find(package)
        for folder in module.folders if module is not None else ():
            for place, folders, files in os.walk(folder):
                folders[:] = sorted(name for name in folders if name.isidentifier() and name != "__pycache__")
                within = os.path.relpath(place, folder)
                prefix = package if within == "." else f"{package}.{within.replace(os.sep, '.')}"
                yield prefix
                named = (name[:-3] for name in files if name.endswith(".py"))
                yield from (f"{prefix}.{name}" for name in named if name.isidentifier())


def at_its_place(module: Module, code: Path | None) -> bool:
    """Whether a module is imported from the job's code, if that is the working directory."""
    if code is None or module.file is None:
        return False
    return os.path.realpath(module.file) == os.path.join(os.path.realpath(code), *module.path.split("/"))


def is_installed(file: str) -> bool:
    """Whether a file is of Python, of an installed package, or of jobsdk."""
    if "site-packages" in file or "dist-packages" in file or file.startswith(_INSTALLED):
        return True
    return os.path.realpath(file).startswith(_INSTALLED)


def _own(name: str, file: object, folders: Iterable[str]) -> Module | None:
    folders = tuple(folders)
    if isinstance(file, str):
        return Module(name, file, folders) if file.endswith(".py") and not is_installed(file) else None
    return Module(name, None, folders) if folders and not any(map(is_installed, folders)) else None


def _unloaded(name: str) -> Module | None:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    return _own(name, spec.origin if spec.has_location else None, spec.submodule_search_locations or ())


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _package(module: Module) -> str:
    return module.name if module.folders else module.name.rpartition(".")[0]


def _is_of_submitting(one: Import) -> bool:
    """Whether it imports something of jobsdk that is not for ranks."""
    names = [f"{one.name}.{name}" for name in one.names] or [one.name]
    return one.level == 0 and any(
        f"{name}.".startswith("jobsdk.") and not name.startswith(_FOR_RANKS) for name in names
    )


class _Source:
    """What a file of Python imports."""

    _known: ClassVar[dict[str, tuple[tuple[int, int], _Source]]] = {}

    def __init__(self, text: bytes) -> None:
        self.imports: list[Import] = []
        self.makes_names = any(word.encode() in text for word in _MAKES_NAMES)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
        while waiting:
            node, at_once = waiting.pop()
            if isinstance(node, ast.Import):
                self.imports += [Import(alias.name, (), 0, at_once) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = tuple(alias.name for alias in node.names)
                self.imports.append(Import(node.module or "", names, node.level, at_once))
            elif not isinstance(node, ast.expr):
                within = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                within = within and not (isinstance(node, ast.If) and _is_not_for_imports(node.test))
                waiting += [(child, within) for child in ast.iter_child_nodes(node)]

    @classmethod
    def of(cls, path: str) -> _Source:
        try:
            facts = os.stat(path)
            stamp = facts.st_mtime_ns, facts.st_size
            known = cls._known.get(path)
            if known is None or known[0] != stamp:
                known = cls._known[path] = stamp, cls(Path(path).read_bytes())
        except OSError:
            return cls(b"")
        return known[1]


def _is_not_for_imports(test: ast.expr) -> bool:
    """Whether a condition is `__name__ == "__main__"` or `TYPE_CHECKING`."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    return bool(names & {"__name__", "TYPE_CHECKING"})


def _folders() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {os.path.dirname(os.path.dirname(os.path.abspath(call.__file__)))}  # jobsdk itself
    paths |= {os.path.dirname(os.path.realpath(pickle.__file__))}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


_INSTALLED = _folders()
