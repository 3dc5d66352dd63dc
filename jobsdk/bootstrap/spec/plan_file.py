"""A run's plan: `plan.json`, and beside it the secrets that it leaves out while the run needs them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Mapping, cast

from . import events

if TYPE_CHECKING:
    from .plan import Plan

_PLAN, SECRETS, TOKEN = "plan.json", "secrets.json", "token"


def read(run_dir: str) -> Plan:
    """The plan as it is to be run; `secret_values` in it are what nothing that is written may hold.

    Raises OSError or ValueError if it is missing, also when its secrets are gone: they are deleted at a run's end.
    """
    plan = events.read_json("%s/%s" % (run_dir, _PLAN))
    if plan.get("sealed"):
        for key, part in events.read_json("%s/%s" % (run_dir, SECRETS)).items():
            plan[key] = dict(plan[key], **part) if isinstance(part, dict) and key in plan else part
    return cast("Plan", plan)


def write_secrets(run_dir: str, parts: Mapping[str, Any]) -> None:
    """Keep the parts of a plan that hold secrets; at no moment anybody but this user can read the file."""
    write_private("%s/%s" % (run_dir, SECRETS), json.dumps(parts))


def token(run_dir: str) -> str:
    """The run's token, hexadecimal; empty where none is kept."""
    try:
        with open("%s/%s" % (run_dir, TOKEN)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def forget_secrets(run_dir: str) -> None:
    """Delete the secrets of a run that has ended; nothing of it can be started any more."""
    for name in (SECRETS, TOKEN):
        try:
            os.unlink("%s/%s" % (run_dir, name))
        except OSError:
            pass  # there were none, or the run's folder is gone


def write_private(path: str, text: str) -> None:
    """Write a new file that at no moment anybody but this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as stream:
        stream.write(text)
