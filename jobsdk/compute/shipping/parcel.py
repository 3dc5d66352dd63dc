"""What is sent with a run to where its bootstraps are: the bootstrap itself, the plan, secrets, a token."""

from __future__ import annotations

import functools
import secrets
from typing import NamedTuple

from jobsdk.bootstrap import archive
from jobsdk.bootstrap.spec import plan_file
from jobsdk.runs.folder import RunFolder

BOOTSTRAP = "bootstrap.pyz"


class Parcel(NamedTuple):
    """Files by name; the `private` ones are for this user alone."""

    files: dict[str, bytes]
    private: tuple[str, ...] = (plan_file.SECRETS, plan_file.TOKEN)


@functools.lru_cache(maxsize=1)
def bootstrap() -> bytes:
    """The bootstrap as one file."""
    return archive.build()


def make(run: RunFolder) -> Parcel:
    """The parcel of a run that is about to be submitted, with a token that is new each time."""
    files = {
        BOOTSTRAP: bootstrap(),
        "plan.json": (run.path / "plan.json").read_bytes(),
        plan_file.TOKEN: secrets.token_hex(32).encode(),
    }
    hidden = run.path / plan_file.SECRETS
    if hidden.exists():
        files[plan_file.SECRETS] = hidden.read_bytes()
    return Parcel(files)


def command(python: str, folder: str, *verb: str) -> list[str]:
    """The argv that starts the bootstrap of a parcel in `folder`: isolated from what is installed there."""
    return [python, "-S", "-E", f"{folder}/{BOOTSTRAP}", *verb]


def secret_values(parcel: Parcel) -> dict[str, str]:
    """What is secret in a parcel, as text: for engines that keep secrets by themselves."""
    return {name: parcel.files[name].decode() for name in parcel.private if name in parcel.files}
