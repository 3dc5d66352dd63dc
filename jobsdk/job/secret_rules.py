"""What of a job is secret, and rules about it: a secret reaches the processes by a variable, not by the command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from jobsdk.bootstrap.spec import secrets
from jobsdk.findings import Report
from jobsdk.job.paths import is_local
from jobsdk.job.rules import MANY, rule

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob

M = TypeVar("M")

_TEXTS = ("display_name", "experiment_name", "description", "command")
_HOW = 'put it into environment_variables and write "$NAME" in the command'


def names(job: CommandJob) -> list[str]:
    """The variables that are secret: those declared, and those of environment_variables that look like it, or that
    hold the value of another one."""
    given = _variables(job)
    found = dict.fromkeys([*_declared(job), *(name for name in given if secrets.is_secret(name, given[name]))])
    known = [given[name] for name in found if len(given.get(name, "")) >= secrets.SHORTEST]
    found.update(dict.fromkeys(name for name in given if any(value in given[name] for value in known)))
    return list(found)


def literals(job: CommandJob) -> dict[str, str]:
    """The inputs that are secret values."""
    return {
        name: value
        for name, value in job.inputs.items()
        if isinstance(value, str) and len(value) >= secrets.SHORTEST and secrets.is_secret(name, value)
    }


def values(job: CommandJob) -> list[str]:
    """All secret values that the job itself holds."""
    given = _variables(job)
    known = [given[name] for name in names(job) if name in given]
    return [*known, *literals(job).values(), *secrets.in_command(job.command or "", known)]


def _declared(job: CommandJob) -> list[str]:
    return [name for name in job.secrets if isinstance(name, str)]  # what is no name has been reported


def _variables(job: CommandJob) -> dict[str, str]:
    return {name: value for name, value in job.environment_variables.items() if isinstance(value, str)}


def without(job: CommandJob) -> CommandJob:
    """A copy of the job that holds no secret; secret variables are declared instead, so that it can be run again."""
    hidden, redactor = names(job), secrets.Redactor(values(job))
    given = job.environment_variables
    changes: dict[str, Any] = {
        "environment_variables": {name: given[name] for name in given if name not in hidden},
        "secrets": hidden,
        **{name: redactor.data(getattr(job, name)) for name in _TEXTS},
        **{name: redactor.data(dict(getattr(job, name))) for name in ("tags", "properties")},
    }
    for name in ("inputs", "outputs"):
        changes[name] = {key: _without(value, redactor) for key, value in getattr(job, name).items()}
    return _changed(job, changes)


def shown(job: CommandJob) -> CommandJob:
    """A copy of the job to be shown, with stars in the place of each secret."""
    hidden, given = names(job), job.environment_variables
    stars = {name: secrets.MASK if name in hidden else value for name, value in given.items()}
    return _changed(without(job), {"environment_variables": stars, "secrets": job.secrets})


def _without(value: Any, redactor: secrets.Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    path = getattr(value, "path", None)
    return value if path is None or is_local(path) else _changed(value, {"path": redactor.text(path)})


def _changed(model: M, changes: dict[str, Any]) -> M:
    """A copy with other fields, which are not judged: it is only to be shown."""
    import copy

    changed = copy.copy(model)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


@rule("secrets", "environment_variables.*")
def secrets_can_be_had(job: CommandJob, report: Report) -> None:
    """A declared secret has its value from environment_variables, else from the submitter's environment."""
    from jobsdk.bootstrap.distributions.contract import IDENTITY

    for index, name in enumerate(_declared(job)):
        path = ("secrets", index)
        if name in IDENTITY:
            report.error(path, f"{name} is set for each process by jobsdk and is no secret", "remove it")
        elif name not in job.environment_variables and name not in os.environ:
            fix = f"export {name} before submitting, or add it to environment_variables"
            report.warn(path, f"{name} is not set here, so the job cannot be submitted from here", fix)


@rule("command", "environment_variables.*", "secrets")
def command_holds_no_secret(job: CommandJob, report: Report) -> None:
    """Every user of a machine can read the command lines of all processes (`ps`)."""
    text, given = job.command or "", _variables(job)
    known = {given[name]: name for name in names(job) if name in given}
    for piece in secrets.in_command(text, known)[:MANY]:
        fix = f'write "${known[piece]}" in its place' if piece in known else _HOW
        report.warn(("command",), "holds a secret, which ps shows to everybody on the node", fix, within=piece)


@rule("inputs.*")
def literals_are_no_secrets(job: CommandJob, report: Report) -> None:
    """The value of an input is put into the command."""
    for name in literals(job):
        report.warn(("inputs", name), "is a secret in the command, which ps shows to everybody on the node", _HOW)
