"""Calls the function that a job carries: each rank of the job runs this file, beside which the function lies.

It travels to where jobsdk is not installed: standard library only, Python 3.8 or later. What the function returns or
raises goes to the file that JOBSDK_RESULT names, as lines of text, for it comes back the way that logs do:

    {"outcome": "returned", "bytes": 1234, ...}      what happened
    gAWVCwAAAAAAAACMB3RyYWluLnB5lC4=...             the pickled value or exception, in base64
    .                                                the end: all of it has been written
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import pickle
import sys
import traceback
from types import TracebackType
from typing import Any, Dict, Iterator, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
PAYLOAD, FACTS, LIBRARY = "call.pkl", "call.json", "library"
RESULT = "JOBSDK_RESULT"
#: Bytes of a pickled value that come back; what is larger belongs into an output of the job.
MOST = 64 << 20
_LINE = 3000  # bytes of base64 in a line
_BAD_PLACE = 78  # as sysexits.h has it: wrong configuration


def main() -> int:
    """Call it; the exit code of the rank."""
    with open(os.path.join(HERE, FACTS), encoding="utf-8") as file:
        facts = json.load(file)
    sys.path[0] = os.getcwd()  # as for a script of the job's code, whose modules are importable
    try:
        function, args, kwargs = _loaded(facts)
    except _Unfit as reason:
        sys.stderr.write("jobsdk: %s\n" % reason)
        _tell({"outcome": "unfit", "message": str(reason)}, b"")
        return _BAD_PLACE
    try:
        value = function(*args, **kwargs)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and not isinstance(end.code, int):
            sys.stderr.write("%s\n" % (end.code,))
        if code:
            _tell({"outcome": "exited", "code": code}, b"")
            return code
        value = None
    except BaseException as error:
        _raised(error)
        return 1
    return _returned(value)


class _Unfit(Exception):
    """The function cannot be loaded here."""


def _loaded(facts: Dict[str, Any]) -> Any:
    there, here = facts["python"], "%d.%d" % sys.version_info[:2]
    if there != here:
        raise _Unfit(
            "the function was sent from Python %s and cannot run on Python %s, which is %s here. Fix: an environment "
            "with Python %s on the compute, or submit with Python %s" % (there, here, sys.executable, there, here)
        )
    _find_library()
    for name, text in facts["sources"].items():  # so that tracebacks show the lines of notebook cells, too
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        with open(os.path.join(HERE, PAYLOAD), "rb") as file:
            loaded = pickle.load(file)
    except ModuleNotFoundError as error:
        raise _Unfit(
            "%s needs the module %s, which is not here (%s). Fix: install it in the job's environment, or submit with "
            "code=FOLDER that has it" % (facts["function"], error.name, sys.executable)
        ) from None
    except Exception as error:
        traceback.print_exc()
        why = "%s: %s" % (type(error).__name__, error)
        raise _Unfit("%s cannot be loaded here: %s%s" % (facts["function"], why, _differing(facts))) from None
    if os.environ.get("RANK", "0") == "0":
        told = _differing(facts)
        if told:
            sys.stderr.write("jobsdk: warning%s\n" % told)
    return loaded


def _find_library() -> None:
    """cloudpickle's own, where it is installed; else the copy that came along."""
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        sys.path.append(os.path.join(HERE, LIBRARY))


def _differing(facts: Dict[str, Any]) -> str:
    """Which libraries are of another version here, as the end of a sentence."""
    parts = []
    for name, there in sorted(facts["libraries"].items()):
        here = getattr(sys.modules.get(name), "__version__", None)
        if here is not None and str(here) != there:
            parts.append("%s is %s here and %s where the function comes from" % (name, here, there))
    return ": " + "; ".join(parts) if parts else ""


# -- what comes back ---------------------------------------------------------------------------------------------------


def _returned(value: Any) -> int:
    try:
        data = _pickled(value)
    except Exception as error:
        text = "what the function returned, of type %s, cannot be pickled: %s: %s. Fix: return plain data, and write the rest to an output"  # noqa: E501
        return _no_value(text % (type(value).__name__, type(error).__name__, error))
    if len(data) > MOST:
        text = "what the function returned takes %.0f MB, and %.0f MB come back. Fix: write it to an output of the job"
        return _no_value(text % (len(data) / 1e6, MOST / 1e6))
    _tell({"outcome": "returned"}, data)
    return 0


def _no_value(text: str) -> int:
    sys.stderr.write("jobsdk: %s\n" % text)
    _tell({"outcome": "unfit", "message": text}, b"")
    return 1


def _raised(error: BaseException) -> None:
    """Show the traceback as Python would have, from the function on, and send the exception with it."""
    trace: Optional[TracebackType] = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, os.path.abspath(__file__)):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    facts = {
        "outcome": "raised",
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "traceback": text[-20000:],
    }
    try:
        data = _pickled(error)
        pickle.loads(data)  # some can be written and not read
    except Exception:
        data = b""
    _tell(facts, data if len(data) <= MOST else b"")


def _pickled(value: Any) -> bytes:
    import cloudpickle

    data: bytes = cloudpickle.dumps(value, protocol=4)
    return data


def _tell(facts: Dict[str, Any], data: bytes) -> None:
    path = os.environ.get(RESULT)
    if not path:  # called by hand
        return
    head = json.dumps(dict(facts, bytes=len(data), python="%d.%d" % sys.version_info[:2]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(head + "\n")
        for line in _lines(data):
            file.write(line + "\n")
        file.write(".\n")


def _lines(data: bytes) -> Iterator[str]:
    step = _LINE // 4 * 3
    for begin in range(0, len(data), step):
        yield base64.b64encode(data[begin : begin + step]).decode("ascii")


if __name__ == "__main__":
    code = main()
    sys.exit(code)
