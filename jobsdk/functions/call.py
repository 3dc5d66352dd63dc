"""Calls the function that a job carries: each rank of the job runs this file, beside which the function lies.

It travels to where jobsdk is not installed: standard library only, Python 3.8 or later. What the function returns or
raises goes to the file that JOBSDK_RESULT names, as lines of text, for it comes back the way that logs do:

    {"outcome": "returned", "bytes": 1234, ...}      what happened; "form" is "json" or "pickle"
    gAWVCwAAAAAAAACMB3RyYWluLnB5lC4=...             the value or exception in that form, in base64
    .                                                the end: all of it has been written
"""

from __future__ import annotations

import base64
import gc
import json
import linecache
import os
import pickle
import sys
import traceback
from types import TracebackType
from typing import Any, Dict, Iterator, Optional, Set

HERE = os.path.dirname(os.path.abspath(__file__))
#: Beside this file: the pickled call, what is checked before, cloudpickle with jobsdk.train, the user's own modules.
PAYLOAD, FACTS, LIBRARY, MODULES = "call.pkl", "call.json", "library", "modules"
RESULT = "JOBSDK_RESULT"
#: Where it goes instead if Azure ML has started the rank, in the working directory: its service keeps what is there.
KEPT = "outputs/jobsdk"
#: Bytes of a pickled value that come back; what is larger belongs into an output of the job.
MOST = 64 << 20
_MOST_BITS = 8192  # Python refuses to read far longer numbers
_DEEPEST = 100  # levels of lists and dicts
_LINE = 3000  # bytes of base64 in a line
_BAD_PLACE = 78  # as sysexits.h has it: wrong configuration


def main() -> int:
    """Call it; the exit code of the rank."""
    facts = _facts()
    # As for a script of the job's code, whose modules are importable; those of elsewhere have come along.
    place = _place()
    sys.path[: int(sys.path[0] == HERE)] = [os.getcwd(), os.path.join(HERE, MODULES)]
    try:
        (function, args, kwargs), of_main = _loaded(facts)
    except _Unfit as reason:
        sys.stderr.write("jobsdk: %s\n" % reason)
        _tell(place, {"outcome": "unfit", "message": str(reason)})
        return _BAD_PLACE
    _define(of_main)
    told = _differing(facts) if os.environ.get("RANK", "0") == "0" else ""
    if told:
        sys.stderr.write("jobsdk: warning%s\n" % told)
    gc.freeze()  # what was imported is looked at no more: with torch half a second of the end
    try:
        value = function(*args, **kwargs)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and not isinstance(end.code, int):
            sys.stderr.write("%s\n" % (end.code,))
        if code:
            _tell(place, {"outcome": "exited", "code": code})
            return code
        value = None
    except BaseException as error:
        _raised(place, error)
        return 1
    return _returned(place, value)


def _facts() -> Dict[str, Any]:
    with open(os.path.join(HERE, FACTS), encoding="utf-8") as file:
        found: Dict[str, Any] = json.load(file)
    return found


class _Unfit(Exception):
    """The function cannot be loaded here."""


def _loaded(facts: Dict[str, Any]) -> Any:
    """The call, and what the user's `__main__` defines of it, by name."""
    there, here = facts["python"], "%d.%d" % sys.version_info[:2]
    if there != here:
        raise _Unfit(
            "the function was sent from Python %s and cannot run on Python %s, which is %s here. Fix: an environment "
            "with Python %s on the compute, or submit with Python %s" % (there, here, sys.executable, there, here)
        )
    sys.path.append(os.path.join(HERE, LIBRARY))  # behind all else: for where they are not installed
    if "cloudpickle" in facts["libraries"]:
        _take_cloudpickle(facts["libraries"]["cloudpickle"])
    for name, text in facts["sources"].items():  # so that tracebacks show the lines of notebook cells, too
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        with open(os.path.join(HERE, PAYLOAD), "rb") as file:
            pickles = pickle.Unpickler(file)  # nosec B301 # the submitter's own call, in the job's own code
            return pickles.load(), pickles.load()
    except ModuleNotFoundError as error:
        traceback.print_exc()
        raise _Unfit(
            "%s needs the module %s, which is not here (%s)%s. Fix: install it in the job's environment, or submit "
            "with code=FOLDER that has it" % (facts["function"], error.name, sys.executable, _differing(facts))
        ) from None
    except Exception as error:
        traceback.print_exc()
        why = "%s: %s" % (type(error).__name__, error)
        raise _Unfit("%s cannot be loaded here: %s%s" % (facts["function"], why, _differing(facts))) from None


def _take_cloudpickle(version: str) -> None:
    """Have the one that has pickled the function: another version may lack what the pickle names."""
    import cloudpickle

    if cloudpickle.__version__ == version:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
        del sys.modules[name]
    sys.path.insert(0, os.path.join(HERE, LIBRARY))
    import cloudpickle

    del sys.path[0]


def _define(of_main: Dict[str, Any]) -> None:
    """Put what the user's `__main__` defines into this one, where `torch.save` and others look for it."""
    ours = globals()
    ours.update((name, value) for name, value in of_main.items() if name not in ours or name == "main")


def _differing(facts: Dict[str, Any]) -> str:
    """Which libraries are of another version here, as the end of a sentence."""
    parts = []
    for name, there in sorted(facts["libraries"].items()):
        here = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(here, str) and here != there:
            parts.append("%s is %s here and %s where the function comes from" % (name, here, there))
    return ": " + "; ".join(parts) if parts else ""


# -- what comes back ---------------------------------------------------------------------------------------------------


def _returned(place: str, value: Any) -> int:
    data = _as_json(value)
    if data is not None:
        _tell(place, {"outcome": "returned", "form": "json"}, data)
        return 0
    try:
        data = _pickled(value)
    except Exception as error:
        text = "what the function returned, of type %s, cannot be pickled: %s: %s. Fix: return plain data, and write the rest to an output"  # noqa: E501
        return _no_value(place, text % (type(value).__name__, type(error).__name__, error))
    if len(data) > MOST:
        text = "what the function returned takes %.0f MB, and %.0f MB come back. Fix: write it to an output of the job"
        return _no_value(place, text % (len(data) / 1e6, MOST / 1e6))
    _tell(place, {"outcome": "returned", "form": "pickle"}, data)
    return 0


def _as_json(value: Any) -> Optional[bytes]:
    """The value as JSON, if reading that gives the very same value; reading JSON runs nothing, as a pickle can."""
    if not _is_plain(value, 0, set()):
        return None
    data = json.dumps(value).encode("ascii")
    return data if len(data) <= MOST else None


def _is_plain(value: Any, depth: int, seen: Set[int]) -> bool:
    """Whether it is None, a bool, int, float, str, or a list or dict of those, no object of which is in it twice."""
    kind = type(value)
    if kind is str:
        return _is_text(value)
    if kind is int:
        return bool(value.bit_length() <= _MOST_BITS)
    if kind is not list and kind is not dict:
        return value is None or kind is bool or kind is float
    if depth > _DEEPEST or id(value) in seen:
        return False
    seen.add(id(value))
    if kind is dict and not all(type(key) is str and _is_text(key) for key in value):
        return False
    return all(_is_plain(item, depth + 1, seen) for item in (value if kind is list else value.values()))


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # two halves of a character would become one
        return False
    return True


def _no_value(place: str, text: str) -> int:
    sys.stderr.write("jobsdk: %s\n" % text)
    _tell(place, {"outcome": "unfit", "message": text})
    return 1


def _raised(place: str, error: BaseException) -> None:
    """Show the traceback as Python would have, from the function on, and send the exception with it."""
    trace: Optional[TracebackType] = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, os.path.abspath(__file__))
        or ("__tracebackhide__" in trace.tb_frame.f_locals and trace.tb_next is not None)  # as pytest has it
    ):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    facts = {
        "outcome": "raised",
        "form": "pickle",
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "traceback": text[-20000:],
    }
    try:
        data = _pickled(error)
        pickle.loads(data)  # nosec B301 # made by the line above; some can be written and not read
    except Exception:
        data = b""
    _tell(place, facts, data if len(data) <= MOST else b"")


def _pickled(value: Any) -> bytes:
    try:
        data = pickle.dumps(value, protocol=4)  # most often enough, and there at once
    except Exception:
        data = b"__main__"
    if b"__main__" in data:  # nobody else has this one
        import cloudpickle

        data = cloudpickle.dumps(value, protocol=4)
    return data


def _place() -> str:
    """The file for what comes back; empty where the call was made by hand."""
    given = os.environ.get(RESULT)
    if given or "AZUREML_RUN_ID" not in os.environ:
        return given or ""
    who = "rank-%s" % os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if "TF_CONFIG" in os.environ:
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        who = "%s-%s" % (task["type"], task["index"])
    return os.path.abspath("%s/%s.result.log" % (KEPT, who))


def _tell(path: str, facts: Dict[str, Any], data: bytes = b"") -> None:
    if not path:
        return
    head = json.dumps(dict(facts, bytes=len(data), python="%d.%d" % sys.version_info[:2]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii", opener=_opener) as file:
        file.write(head + "\n")
        for line in _lines(data):
            file.write(line + "\n")
        file.write(".\n")


def _opener(path: str, flags: int) -> int:
    """A new file gets the rights of its folder, which is the run's where the job has one."""
    return os.open(path, flags, 0o644 & os.stat(os.path.dirname(path)).st_mode)


def _lines(data: bytes) -> Iterator[str]:
    step = _LINE // 4 * 3
    for begin in range(0, len(data), step):
        yield base64.b64encode(data[begin : begin + step]).decode("ascii")


if __name__ == "__main__":
    code = main()
    sys.exit(code)
elif __name__ == "__mp_main__":  # a process that multiprocessing has restarted from this one
    _define(_loaded(_facts())[1])
