"""A function made ready to travel: pickled by value with what it refers to, in a folder that goes as a job's code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from jobsdk.errors import JobsdkError
from jobsdk.functions import call
from jobsdk.runs import home, make_folder

#: In the code of the job: the folder with the call.
FOLDER = "jobsdk_call"
COMMAND = f"python {FOLDER}/call.py"
_KEPT_S = 30 * 86400  # how long a folder is kept that no submission has used


def stage(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], code: Path | None) -> Path:
    """The folder with the call and the files of `code`, made unless it is there; under `home()`, for it is no run's.

    Raises JobsdkError for what cannot be pickled, with the way to it.
    """
    data, facts = pickled(function, args, kwargs, code)
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(data + text.encode())
    if code is not None:
        from jobsdk import snapshot

        digest.update(snapshot.fingerprint(code).encode())
    store = make_folder(home() / "functions")
    folder = store / digest.hexdigest()[:32]
    if folder.is_dir():
        os.utime(folder)
        return folder
    _tidy(store)
    partly = store / f"{folder.name}.{os.getpid()}.{time.monotonic_ns()}.part"
    try:
        if code is not None:
            from jobsdk import snapshot

            snapshot.take(code, partly)
        _write(partly / FOLDER, data, text)
        os.rename(partly, folder)
    except OSError as error:
        shutil.rmtree(partly, ignore_errors=True)
        if not folder.is_dir():  # another process may have made it
            raise JobsdkError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


def _write(folder: Path, data: bytes, facts: str) -> None:
    import cloudpickle

    folder.mkdir(parents=True)
    (folder / call.PAYLOAD).write_bytes(data)
    (folder / call.FACTS).write_text(facts, "utf-8")
    shutil.copyfile(call.__file__, folder / "call.py")
    library = folder / call.LIBRARY / "cloudpickle"
    library.mkdir(parents=True)
    for source in Path(cloudpickle.__file__).parent.glob("*.py"):
        shutil.copyfile(source, library / source.name)


def _tidy(store: Path) -> None:
    """Take away what nobody has used for long."""
    for folder in store.iterdir():
        try:
            if time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # another process does the same


def pickled(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], code: Path | None
) -> tuple[bytes, dict[str, Any]]:
    """The pickled call, and the facts that `call` checks. Raises JobsdkError for what cannot be pickled."""
    import cloudpickle

    call_of = (function, tuple(args), dict(kwargs))
    buffer = io.BytesIO()
    with _by_value(code) as modules:
        try:
            cloudpickle.Pickler(buffer, protocol=4).dump(call_of)
        except Exception as error:
            from jobsdk.functions.culprit import explained

            raise JobsdkError(explained(function, args, kwargs, error)) from error
    data = buffer.getvalue()
    return data, {
        "python": "%d.%d" % sys.version_info[:2],
        "function": name_of(function),
        "libraries": _libraries(data),
        "sources": _sources(function, modules),
    }


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in messages."""
    return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function))


def _libraries(data: bytes) -> dict[str, str]:
    """The version of each package that the pickle refers to."""
    import pickletools

    texts = {argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    found = {}
    for name in sorted({text.partition(".")[0] for text in texts}):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def _sources(function: Callable[..., Any], modules: Sequence[ModuleType]) -> dict[str, str]:
    """The text of files that only exist here, by the names that tracebacks have for them."""
    import linecache

    code = getattr(function, "__code__", None)
    names = {code.co_filename} if code is not None else set()
    home_module = getattr(function, "__module__", "")
    names |= {module.__file__ for module in modules if module.__file__ and module.__name__ == home_module}
    found = {}
    for name in names:
        lines = linecache.getlines(name)
        if lines and sum(map(len, lines)) < 1 << 20:
            found[name] = "".join(lines)
    return found


# -- modules of the user's own -----------------------------------------------------------------------------------------


@contextmanager
def _by_value(code: Path | None) -> Iterator[list[ModuleType]]:
    """Within it, cloudpickle takes along the user's own modules, which the job's environment does not have."""
    import cloudpickle

    known = cloudpickle.list_registry_pickle_by_value()
    loaded = list(sys.modules.values())
    modules = [module for module in loaded if _is_own(module, code) and module.__name__ not in known]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield modules
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType, code: Path | None) -> bool:
    """Whether a module is one of the user's project: of no installation, nor at its place within the job's code."""
    name, file = getattr(module, "__name__", None), getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(name, str) or not isinstance(file, str):
        return False
    if name == "__main__" or sys.modules.get(name) is not module or not file.endswith(".py"):
        return False
    if file.startswith(_INSTALLED) or "site-packages" in file or "dist-packages" in file:
        return False
    path = os.path.realpath(file)
    if path.startswith(_INSTALLED):
        return False
    if code is None:
        return True
    place = os.path.join(os.path.realpath(code), *name.split("."))
    return path not in (f"{place}.py", os.path.join(place, "__init__.py"))


def _folders() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {os.path.dirname(os.path.dirname(os.path.abspath(call.__file__)))}  # jobsdk itself
    paths |= {os.path.dirname(os.path.realpath(pickle.__file__))}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


_INSTALLED = _folders()
