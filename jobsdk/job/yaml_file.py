"""Job files: reading them, with overrides, from files, streams and mappings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from jobsdk.findings import Finding, Report, SourceLocation, dotted, in_order, show
from jobsdk.job.command import CommandJob
from jobsdk.job.environment import Environment
from jobsdk.job.model import Model
from jobsdk.job.paths import working_directory
from jobsdk.job.yaml_text import Positions, decode, parse

#: The largest job file that is read, in bytes.
SIZE_LIMIT = 1 << 20
Source = Any  # a path, a stream with .read(), or a mapping

#: What stands for the file's name in findings about an override.
SET = "--set"

#: What overrides are: a list of mappings from dotted paths to values, or one such mapping.
Overrides = Iterable[Mapping[str, Any]] | Mapping[str, Any] | None

_FREE_FORM = ("tags", "properties", "environment_variables")


def load_job(source: Source, params_override: Overrides = None, *, strict: bool = False) -> CommandJob:
    """The job of a YAML file (a path or an open stream) or of a mapping.

    `params_override` is a list of mappings from dotted paths to values, as Azure ML takes it:
    `[{"resources.instance_count": 2}]`; one mapping alone is taken too. With `strict`, unknown keys that are otherwise
    tolerated are errors. Raises `ValidationError` with everything that is wrong; what depends on files and on several
    fields at once is judged by `job.validate()`.
    """
    job, findings = read_job(source, params_override, strict=strict, judge=False)
    if job is None:
        from jobsdk.errors import ValidationError

        raise ValidationError(findings)
    return job


def load_component(
    source: Source = None, relative_origin: str | None = None, params_override: Overrides = None
) -> NoReturn:
    """Raises JobsdkError: components are parts of Azure ML's pipelines, which do not run here.

    It is there because Azure ML's notebooks import it, most of them without a call.
    """
    from jobsdk.errors import JobsdkError

    raise JobsdkError(
        f"{show(source)} is a component, a part of a pipeline, and does not run here. "
        "Fix: write its command as a job and load that with load_job(), or use azure-ai-ml"
    )


def read_job(
    source: Source,
    overrides: Overrides = None,
    *,
    strict: bool = False,
    judge: bool = True,
) -> tuple[CommandJob | None, tuple[Finding, ...]]:
    """The job, or None if it cannot be one, and all findings; never raises for what is in the source.

    With `judge` false, what only `job.findings()` can say is left out if the job can be loaded.
    """
    data, positions, base, problems = _read(source)
    if data is None:
        return None, tuple(in_order(problems))
    report = Report(positions, strict=strict)
    report.findings += problems
    for dotted_path, value in _each(overrides, report):
        data, positions = _override(data, positions, dotted_path, value, report)
        report.places = positions
    job = CommandJob.structure(data, (), report)
    if isinstance(job.environment, Environment) and isinstance(data.get("environment"), Mapping):
        job.environment.make_anonymous(("environment",), report)
    unread = {problem.path for problem in problems}
    known = set(problems)
    report.findings = [f for f in report.findings if f in known or f.path not in unread]
    job.base_path = base
    job._places = positions
    errors = report.errors
    if errors or judge:
        from jobsdk.job import rules

        rules.judge(job, report)
    if not errors:
        job._loaded = job.to_dict()
    return (None if errors else job), tuple(in_order(report.findings))


def parse_override(text: str) -> dict[str, Any]:
    """The override that `a.b=value` stands for; the value is read as YAML, so `2` is a number and `[a, b]` a list.

    What is no YAML, has several lines or holds ` #`, is text as it stands. Raises `ValidationError`.
    """
    path, equals, written = text.partition("=")
    path, written = path.strip(), written.strip()
    problems: list[Finding] = []
    value: Any = written
    if not equals or not all(path.split(".")):
        problems.append(Finding("error", (), f"{show(text)} is no override", "write it as key.key=value", SET))
    elif written[:1] in ("'", '"', "[", "{") or not re.search(r" #|\n|^[!&]", written):
        value = parse(written, Positions(SET), problems, _path(path), or_text=True) if written else ""
        if isinstance(value, list | dict) and written[0] not in "[{":  # "a: b" is text, "{a: b}" is meant
            value = written
    if problems:
        from jobsdk.errors import ValidationError

        raise ValidationError([problem._replace(file=SET, line=None, column=None) for problem in problems])
    return {path: value}


def _each(overrides: Overrides, report: Report) -> Iterator[tuple[str, Any]]:
    """Each path of the overrides with its value; what is no override is reported."""
    if isinstance(overrides, str | Mapping) or not isinstance(overrides, Iterable):
        overrides = [] if overrides is None else [overrides]
    for override in overrides:
        if isinstance(override, Mapping):
            yield from ((str(path), value) for path, value in override.items())
        else:
            message = f"{show(override)} is no override"
            report.findings.append(Finding("error", (), message, "write [{'resources.instance_count': 2}]", SET))


def _path(dotted_path: str) -> tuple[str, ...]:
    """The path that a user wrote; names in free-form mappings may have dots."""
    head, dot, rest = dotted_path.partition(".")
    return (head, rest) if dot and head in _FREE_FORM else tuple(dotted_path.split("."))


def _override(
    data: dict[str, Any], positions: Positions, dotted_path: str, value: Any, report: Report
) -> tuple[dict[str, Any], Positions]:
    """The data with the value at the path, and where it comes from. What was given is not changed."""
    path = _path(dotted_path)
    known: Any = data
    depth = 0
    while depth < len(path) and isinstance(known, Mapping) and known.get(path[depth]) is not None:
        known = known[path[depth]]
        depth += 1
    is_new = isinstance(known, Mapping)  # the first part of the path that was not there comes from the override too
    positions = positions.replace(path[: depth + 1] if is_new else path, SourceLocation(SET))
    report.places = positions
    return _with(data, path, 0, value, report), positions


def _with(data: Any, path: tuple[str, ...], depth: int, value: Any, report: Report) -> Any:
    if depth == len(path):
        return value
    if isinstance(data, Model):
        data = data.to_dict()
    if data is not None and not isinstance(data, Mapping):
        head = dotted(path[:depth])
        report.error(path, f"cannot be set, since {head} is {show(data)}", f"set the whole of {head}")
        return data
    inner = (data or {}).get(path[depth])
    return {**(data or {}), path[depth]: _with(inner, path, depth + 1, value, report)}


def _read(source: Source) -> tuple[dict[str, Any] | None, Positions, str | None, list[Finding]]:
    """The data of a source if it has any, its positions, the folder of its relative paths, and what is wrong."""
    if isinstance(source, Mapping):
        return dict(source), Positions(""), None, []
    problems: list[Finding] = []
    label, base = _name(source)
    content = _content(source, label, problems)
    if content is not None and label.endswith(".py"):
        problems.append(Finding("error", (), "this is a Python file, not a job file", "name a job.yml", label))
    text = "" if content is None or problems else decode(content, label, problems)
    positions = Positions(label, text)
    data = None if problems else parse(text, positions, problems)
    if not problems and data is None:
        problems.append(Finding("error", (), "the file is empty", "write a job: 'command: ...'", label))
    elif not problems and not isinstance(data, dict):
        fix = "write 'key: value' lines, as in 'command: python train.py'"
        problems.append(Finding("error", (), f"a job file must be a mapping, not {show(data)}", fix, label, 1, 1))
    return (data if isinstance(data, dict) else None), positions, base, problems


def _name(source: Source) -> tuple[str, str | None]:
    """What messages call the source, and the folder that its relative paths are relative to."""
    path = getattr(source, "name", None) if hasattr(source, "read") else source
    if not isinstance(path, str | bytes | os.PathLike):
        return "<stream>", None
    name = os.fsdecode(path)
    label = "".join(char if char.isprintable() else "?" for char in name)
    if label != name or (hasattr(source, "read") and not os.path.isfile(name)):
        return label, None
    return label, os.path.dirname(os.path.normpath(os.path.join(working_directory(), name)))


def _content(source: Source, label: str, problems: list[Finding]) -> bytes | str | None:
    """What the source holds, or None after noting why it cannot be read."""
    message, fix = "", ""
    try:
        if hasattr(source, "read"):
            content = source.read(SIZE_LIMIT + 1)
        else:
            if isinstance(source, str) and "\n" in source:
                fix = "give the path of a file, or for YAML text io.StringIO(text)"
            with open(os.fspath(source), "rb") as stream:
                content = stream.read(SIZE_LIMIT + 1)
        if isinstance(content, bytes | str) and len(content) <= SIZE_LIMIT:
            return content
        message = f"is larger than {SIZE_LIMIT >> 20} MiB, which no job file is"
        if not isinstance(content, bytes | str):
            message = f"gives {show(content)}, not text"
    except FileNotFoundError:
        message, fix = "there is no such file", fix or f"the working directory is {working_directory()}"
    except IsADirectoryError:
        message, fix = "is a folder, not a job file", "name the file in it, such as job.yml"
    except UnicodeDecodeError:
        message, fix = "is not UTF-8 text", "save the file as UTF-8"
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    except (TypeError, ValueError):
        message, fix = f"{show(source)} is no job file", fix or "give a path, an open file or a dict"
    problems.append(Finding("error", (), message, fix, label))
    return None


def read_environment(source: Source) -> tuple[Environment | None, tuple[Finding, ...]]:
    """The environment that a file of its own describes, and what is wrong with it; its paths begin at its folder."""
    data, positions, _, problems = _read(source)
    if data is None:
        return None, tuple(problems)
    report = Report(positions)
    report.findings += problems
    if "dependencies" in data and "image" not in data:
        fix = "write environment: {conda_file: ...} in the job, with an image"
        report.error(("dependencies",), "this is a conda file, not an environment file", fix, key=True)
        return None, tuple(report.findings)
    environment = Environment.structure(data, (), report)
    return (None if report.errors else environment), tuple(in_order(report.findings))
