"""The settings of an ssh compute: their names, their forms. What is wrong with `hosts` is found where they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.settings import Setting, must_be

FOLDER, PYTHON = "~/.jobsdk", "python3"


def lines(value: Any) -> Any:
    """A text as its lines; anything else as it is."""
    return value.splitlines() if isinstance(value, str) else value


_TEXT = must_be("a text", lambda value: isinstance(value, str))
_LINES = must_be(
    "a list of texts",
    lambda value: isinstance(lines(value), list) and all(isinstance(line, str) for line in lines(value)),
)
_NUMBER = must_be("a number", lambda value: value is None or (type(value) is int and value >= 0))
_PORTS = must_be(
    "a list of numbers from 1 to 65535",
    lambda value: isinstance(value, list) and all(isinstance(port, int) and 0 < port < 65536 for port in value),
)


def _place(value: Any) -> str:
    return _TEXT(value) or ("" if value.rstrip("/").startswith(("/", "~/")) or not value else "must begin with / or ~/")


SETTINGS: Mapping[str, Setting] = {
    "hosts": Setting("the machines: NAME, USER@HOST:PORT, or {host, gpus, address}", lambda value: ""),
    "folder": Setting(f"where runs and code are kept there; without it {FOLDER}", _place),
    "python": Setting(f"the interpreter there, 3.8 or later; without it {PYTHON}", _TEXT),
    "setup": Setting("shell lines before the bootstrap is started there, as [module load cuda]", _LINES),
    "ports": Setting(
        "control ports of node 0 that others may reach, as [29400, 29401]; without it chosen for each run", _PORTS
    ),
    "gpus_per_node": Setting("GPUs of each host that does not say it itself", _NUMBER),
    "ssh_options": Setting('further options for ssh, as ["-F", "/path/to/config"]', _LINES),
}
