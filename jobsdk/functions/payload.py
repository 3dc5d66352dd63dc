"""A function made ready to travel: pickled with what it refers to, in a folder that goes as a job's code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.bootstrap.system import private
from jobsdk.errors import JobsdkError
from jobsdk.functions import call
from jobsdk.functions.names import name_of
from jobsdk.home import home, locked, make_folder

#: In the code of the job: the folder with the call.
FOLDER = "jobsdk_call"
_KEPT_S = 30 * 86400  # how long a folder is kept that no submission has used
_MOST_SOURCE = 1 << 20  # characters of a file whose lines tracebacks show
_one = threading.Lock()  # what is pickled by value is known to all of cloudpickle


class Payload(NamedTuple):
    """A call: the pickle, the facts that `call` checks, and the own modules as files, by their place."""

    data: bytes
    facts: str
    modules: Mapping[str, bytes]

    def digest(self) -> str:
        whole = hashlib.sha256(self.data)
        for part in (self.facts.encode(), *(item for place in self.modules.items() for item in place)):
            content = part if isinstance(part, bytes) else part.encode()
            whole.update(b"%d\0%b" % (len(content), content))
        return whole.hexdigest()


def stage(payload: Payload, code: Path | None) -> Path:
    """The folder with the call and the files of `code`, made unless it is there; under `home()`, for it is no run's.

    Raises JobsdkError for what cannot be read or written.
    """
    name = payload.digest()
    if code is not None:
        from jobsdk.snapshot import copy

        name = hashlib.sha256((name + copy.fingerprint(code)).encode()).hexdigest()
    store = make_folder(home() / "functions")
    folder = store / name[:32]
    with locked(store / ".lock"):  # what is found here is not tidied away in this moment
        if folder.is_dir():
            os.utime(folder)
            return folder
        gone = _aged(store)
    for old in gone:
        shutil.rmtree(old, ignore_errors=True)
    partly = store / f"{folder.name}.{os.getpid()}.{threading.get_ident()}.part"
    shutil.rmtree(partly, ignore_errors=True)  # of one that was killed: a container's processes have the same numbers
    try:
        if code is not None:
            from jobsdk.snapshot import copy

            copy.take(code, partly)
        _write(partly / FOLDER, payload)
        os.rename(partly, folder)
    except OSError as error:
        if not folder.is_dir():  # else another process has made it meanwhile
            raise JobsdkError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partly, ignore_errors=True)
    return folder


def _write(folder: Path, payload: Payload) -> None:
    import cloudpickle

    _put(folder / call.PAYLOAD, payload.data)
    _put(folder / call.FACTS, payload.facts.encode())
    _put(folder / "call.py", Path(call.__file__).read_bytes())
    ours = Path(call.__file__).parents[1]
    of_ranks = [*ours.glob("__init__.py*"), *(ours / "train").glob("*.py")]  # jobsdk.train, which needs nothing else
    for package, sources in (
        (ours, of_ranks),
        (Path(cloudpickle.__file__).parent, Path(cloudpickle.__file__).parent.glob("*.py")),
    ):
        for source in sources:
            _put(folder / call.LIBRARY / source.relative_to(package.parent), source.read_bytes())
    for place, content in payload.modules.items():
        _put(folder / call.MODULES / place, content)


def _put(file: Path, content: bytes) -> None:
    private.make_within(str(file.parent))
    with open(file, "wb", opener=private.opener) as stream:
        stream.write(content)


def _aged(store: Path) -> list[Path]:
    """What has not been used for long, renamed so that nobody finds it any more."""
    gone = []
    for folder in store.iterdir():
        try:
            if folder.is_dir() and time.time() - folder.stat().st_mtime > _KEPT_S:
                target = folder.with_name(f"{folder.name}.{os.getpid()}.gone")
                os.rename(folder, target)
                gone.append(target)
        except OSError:
            pass  # its owner has taken it away
    return gone


def pickled(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], code: Path | None) -> Payload:
    """The call, for a job that runs in `code`. Raises JobsdkError for what cannot be pickled, with the way to it."""
    from jobsdk.functions import modules
    from jobsdk.functions.pickling import Pickler

    project, buffer = modules.Project(), io.BytesIO()
    with _one:
        pickler = Pickler(buffer, project)
        try:
            pickler.dump((function, tuple(args), dict(kwargs)))
            pickler.dump(pickler.of_main())  # which have gone already, and are named there as here
        except Exception as error:
            from jobsdk.functions.culprit import explained

            raise JobsdkError(explained(function, args, kwargs, pickler, error)) from error
    needed = project.needed(pickler.needed())
    facts = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "function": name_of(function),
        "libraries": _versions(pickler.modules),
        "sources": _sources(file for file in pickler.files() if not modules.is_installed(file)),
    }
    there = [one for one in needed.values() if not modules.at_its_place(one, code)]
    return Payload(buffer.getvalue(), json.dumps(facts, sort_keys=True), _contents(there))


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """The version of each package that the pickle names."""
    found = {}
    for name in {name.partition(".")[0] for name in modules}:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str) and name not in sys.stdlib_module_names:
            found[name] = version
    return found


def _sources(files: Iterable[str]) -> dict[str, str]:
    """The text of files and cells by the names that tracebacks have for them: their lines are shown, here as there."""
    import linecache

    texts = {name: "".join(linecache.getlines(name)) for name in files}
    return {name: text for name, text in texts.items() if 0 < len(text) < _MOST_SOURCE}


def _contents(modules: Iterable[Any]) -> dict[str, bytes]:
    """Modules' files by their place. Raises JobsdkError for one that cannot be read."""
    found = {}
    for module in modules:
        try:
            content = Path(module.file).read_bytes() if module.file is not None else None
        except OSError as error:
            raise JobsdkError(f"the module {module.name} cannot be read: {module.file}: {error.strerror}") from error
        if content is not None:
            found[module.path] = content
    return dict(sorted(found.items()))
