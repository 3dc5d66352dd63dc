"""Writes docs/reference/: tables of what the code says itself. `--check` only says which of them are out of date.

python scripts/reference.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jobsdk import compute as computes  # noqa: E402
from jobsdk import reference  # noqa: E402
from jobsdk.bootstrap import distributions  # noqa: E402
from jobsdk.bootstrap.coordinator.restarts import LASTING  # noqa: E402
from jobsdk.bootstrap.distributions import contract  # noqa: E402
from jobsdk.bootstrap.failures import known_errors  # noqa: E402
from jobsdk.bootstrap.spec import facts  # noqa: E402
from jobsdk.bootstrap.spec import report as report_  # noqa: E402
from jobsdk.bootstrap.spec.plan import Plan  # noqa: E402
from jobsdk.compute.base import COMMON  # noqa: E402
from jobsdk.job.command import CommandJob, command  # noqa: E402
from jobsdk.job.distribution import DISTRIBUTIONS  # noqa: E402
from jobsdk.job.identity import IDENTITY  # noqa: E402
from jobsdk.job.schema import _UNTYPED, job_schema  # noqa: E402
from jobsdk.job.services import SERVICE  # noqa: E402
from jobsdk.planning.plan import make_plan  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
_MADE = "<!-- Made by scripts/reference.py from the code: `make docs` updates it. -->"


# -- the environment ---------------------------------------------------------------------------------------------------

#: Jobs that between them set every variable of the contract, by what the table calls them.
JOBS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "pytorch": {"distribution": {"type": "pytorch", "process_count_per_instance": 2}},
    "tensorflow": {"distribution": {"type": "tensorflow"}},
    "mpi": {"distribution": {"type": "mpi", "process_count_per_instance": 2}},
    "deepspeed": {"distribution": {"type": "deepspeed", "process_count_per_instance": 2}},
    "ray": {"distribution": {"type": "ray"}},
}
_TYPES = frozenset(JOBS)
_CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "mpi with `launcher: direct`, several nodes": {
        "distribution": {"type": "mpi", "process_count_per_instance": 2, "launcher": "direct"}
    },
    "deepspeed with `config`": {"distribution": {"type": "deepspeed", "config": {"train_batch_size": 2}}},
    "with `gpus_per_process` or `scaling`": {"distribution": {"type": "pytorch"}, "gpus_per_process": 1},
    "with `torch_config`": {"torch_config": {"backend": "gloo", "init_method": "tcp", "timeout_s": 600}},
}
_DATA: Mapping[str, Any] = {"inputs": {"name": "3e-4"}, "outputs": {"name": {"type": "uri_folder"}}}
RUN, RUN_DIR, INHERITED = "calm_fern_x1", "/runs/calm_fern_x1", {"PATH": "/usr/bin"}


def plan_of(options: Mapping[str, Any], nodes: int) -> Plan:
    """The plan of a job with these options on so many nodes."""
    return make_plan(command(command="python train.py", instance_count=nodes, **_DATA, **options), name=RUN)


def facts_of(nodes: int, inherited: Mapping[str, str] = INHERITED) -> facts.Facts:
    """What two machines would say of themselves."""
    addresses = [f"10.0.0.{4 + node}" for node in range(nodes)]
    ports = [[29400 + index for index in range(4)]] * nodes
    return facts.Facts(
        addresses=addresses, ports=ports, host_list=",".join(addresses), cores=16, interface="eth0", gpus=["0", "1"],
        inherited=inherited, run_dir=RUN_DIR, io_dir=RUN_DIR, ray="/tmp/ray-x1",
    )  # fmt: skip


def set_by(options: Mapping[str, Any], nodes: int, inherited: Mapping[str, str] = INHERITED) -> dict[str, str]:
    """All variables of the processes of a job; of one that several have, the last process's value."""
    plan = plan_of(options, nodes)
    applied = contract.Contract(plan, facts_of(nodes, inherited))
    found: dict[str, str] = {}
    for process in distributions.of(plan).processes():
        found.update(applied.environment(process))
    return {name.replace("_name", "_<name>") if name.startswith("AZURE_ML_") else name: found[name] for name in found}


def environment() -> str:
    seen: dict[str, dict[str, str]] = {}  # variable -> job and nodes -> value
    for label, options in {**JOBS, **_CONDITIONS}.items():
        for nodes in (1, 2):
            for name, value in set_by(options, nodes).items():
                seen.setdefault(name, {})[f"{label}/{nodes}"] = value
    given = dict.fromkeys(seen, "1")
    jobs = [(options, nodes) for options in (*JOBS.values(), *_CONDITIONS.values()) for nodes in (1, 2)]
    kept = {name for options, nodes in jobs for name in set_by(options, nodes, given)}
    rows = []
    for name in reference.VARIABLES:
        values = seen[name]
        who = _who(list(values)) + ("" if name in kept else ", unless set")
        where = ", ".join(f"`{one}`" for one in _own_first(values, name))
        rows.append((f"`{name}`", who, reference.VARIABLES[name], where))
    may_not = ", ".join(f"`{name}`" for name in sorted(contract.IDENTITY))
    return _page(
        "Variables",
        "What every process of a job finds in its environment, by the function that the bootstrap applies, too; the "
        "example is that of the last rank of two nodes with two processes each. *Unless set*: by the job or in the "
        "inherited environment. [`network`](../network.md) of a compute adds `NCCL_IB_*`, `UCX_*` and others where it "
        "calls for them. More on it: [the environment of a process](../environment.md).",
        _table(("variable", "who gets it", "what it is", "example"), rows),
        f"A job may not set those that say which process this is: {may_not}.",
    )


def _own_first(values: Mapping[str, str], name: str) -> list[str]:
    """The one example of a variable: that of a plain job on two nodes, where it has one."""
    best = next((values[key] for key in ("pytorch/2", "mpi/2", "deepspeed/2") if key in values), None)
    text = best if best is not None else list(values.values())[-1]
    return [text if len(text) < 90 else text[:60] + "..."]


def _who(keys: list[str]) -> str:
    types = [name for name in JOBS if f"{name}/1" in keys or f"{name}/2" in keys]
    if len(types) == len(JOBS):
        return "all"
    if not types:
        return next(label for label in _CONDITIONS if f"{label}/2" in keys)
    alone = any(f"{name}/1" in keys for name in types)
    several = any(f"{name}/2" in keys for name in types)
    nodes = "" if alone and several else " on a single node" if alone else " on several nodes"
    return ", ".join(types) + nodes


# -- the others --------------------------------------------------------------------------------------------------------


def failure_classes() -> str:
    rows = []
    for name, kind in known_errors.CLASSES.items():
        own = [sign.advice[0] for sign in known_errors.SIGNS if sign.name == name and sign.advice]
        advice = kind.advice[-1] if kind.advice else own[0] if len(own) == 1 else "depends on the error" if own else ""
        victim = {known_errors.VICTIM: "yes", known_errors.WAITED: "often"}.get(kind.place, "")
        rows.append((f"`{name}`", reference.FAILURES[name], _again(name), victim, _plain(advice)))
    return _page(
        "Classes of failures",
        "`cause.class` in `report.json` and in `JobFailed.report`; `retry_on` and `never_retry_on` take these names. A "
        "failure that is a victim of another is never the cause while that one is known. What each is known by is in "
        "`jobsdk/bootstrap/failures/known_errors.py`; see [when a job fails](../failures.md).",
        "Started again: *yes*, as often as `max_restarts` allows; *if named* in `retry_on`, as it would fail again in "
        "the same way; *preemption*, as often as `max_preemptions` allows.",
        _table(("class", "what it is", "started again", "victim", "advice"), rows),
    )


def _again(name: str) -> str:
    if name in LASTING:
        return "if named"
    return {"preempted": "preemption", "timeout": "no", "cancelled": "no"}.get(name, "yes")


def exit_codes() -> str:
    runs = [(str(code), status, meaning) for code, (status, meaning) in sorted(reference.EXIT_CODES.items())]
    own = [(str(code), meaning) for code, meaning in reference.COMMAND_CODES.items()]
    return _page(
        "Exit codes",
        "## Of a run",
        "A run that failed has the exit code of the rank that failed first, 128 + n for signal n. `jobsdk run`, "
        "`job create --stream`, `job stream` and `job wait` end with it. Besides there are:",
        _table(("code", "status", "when"), runs),
        "## Of `jobsdk` itself",
        _table(("code", "when"), own),
    )


def events() -> str:
    rows = [
        (f"`{name}`", ", ".join(f"`{fact}`" for fact in event.facts), event.by, event.meaning)
        for name, event in reference.EVENTS.items()
    ]
    return _page(
        "Events",
        "`events.jsonl` in [the run's folder](../running.md#the-runs-folder): a JSON object on each line, with `t` "
        "(seconds since 1970), `event`, and facts, of which not every writer knows all. State, timeline, cards and "
        "pages are read from it. Besides there may be `origin` (of an event that came back from a node: node, start of "
        "its container, place in its file) and `azureml` (the service's own word). New names and facts may come; a "
        "reader should pass over what it does not know.",
        _table(("event", "facts", "written by", "what it says"), rows),
    )


def report() -> str:
    parts = []
    for name, (doc, rows) in _typed(Path(report_.__file__)).items():
        if name not in ("_Failed", "RankEnd", "Oom", "Disk", "Evidence"):
            parts += [f"## {name}", doc, _table(("key", "value", "meaning"), rows)]
    return _page(
        "The report of a run",
        "How a run ended. `Run.report`, `JobFailed.report` and `report.json` in [the run's "
        "folder](../running.md#the-runs-folder) have these keys. The types are in `jobsdk/bootstrap/spec/report.py`.",
        *_whole_first(parts),
    )


def _whole_first(parts: list[str]) -> list[str]:
    """Triples of title, text and table, the whole before what it is made of."""
    return [line for start in range(len(parts) - 3, -1, -3) for line in parts[start : start + 3]]


def _typed(file: Path) -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """The TypedDicts of a module: docstring, and each key with its type and the `#:` comment above it."""
    text = file.read_text()
    lines, found = text.split("\n"), {}
    for model in ast.parse(text).body:
        if isinstance(model, ast.ClassDef):
            rows = [row for base in model.bases for row in found.get(ast.unparse(base), ("", []))[1]]
            for key in model.body:
                if isinstance(key, ast.AnnAssign):
                    meaning = lines[key.lineno - 2].strip()
                    if not meaning.startswith("#: "):
                        raise ValueError(f"{file}:{key.lineno}: no `#:` comment above the key")
                    rows.append((f"`{ast.unparse(key.target)}`", f"`{ast.unparse(key.annotation)}`", meaning[3:]))
            found[model.name] = (ast.get_docstring(model) or "", rows)
    return found


def compute_settings() -> str:
    parts = []
    for name in computes.types():
        found = computes.type_of(name)
        if not found.__module__.startswith("jobsdk."):  # another package's, which is installed here
            continue
        known = found.settings_known
        parts += [f"## {name}", _table(("setting", "meaning"), [(f"`{key}`", known[key]) for key in known])]
    return _page(
        "Settings of computes",
        "The entries of [`computes.yml`](../computes.md), by type. `jobsdk compute show NAME` prints the same.",
        *parts,
        "## Every type",
        _table(("setting", "meaning"), [(f"`{key}`", COMMON[key]) for key in COMMON]),
    )


def job_file() -> str:
    schema = job_schema()
    models = {"CommandJob": CommandJob, **_models()}
    parts = []
    for name, model in models.items():
        described = schema if model is CommandJob else schema["definitions"][name]
        rows = [
            (f"`{key}`", _shape(described["properties"][key]), _default(spec), spec.doc)
            for key, spec in model._fields.items()
        ]
        doc = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
        title = "Job" if model is CommandJob else name
        parts += [f"## {title}", doc, _table(("field", "value", "default", "meaning"), rows)]
    return _page(
        "The job file",
        "Every field of a [job](../jobs.md), in YAML as in Python. A field that is not given has its default. "
        "`jobsdk schema` prints the same as JSON Schema.",
        *parts,
    )


def _models() -> dict[str, Any]:
    """The models that a job's fields lead to, by name, in the order in which they are met."""
    typed = [*DISTRIBUTIONS, *SERVICE.models, *IDENTITY.models]
    return {model.__name__: model for model in (*_UNTYPED, *typed)}


def _default(spec: Any) -> str:
    value = spec.initial()
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    return "" if value in (None, {}, []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _shape(schema: Mapping[str, Any]) -> str:
    """What a field takes, in few words; the forms of text that JSON Schema spells out are told by its meaning."""
    branches = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    choices = [one for one in branches if "enum" in one]
    if choices:  # the patterns beside it are the same words in other letter cases
        branches = [*choices, *(one for one in branches if "enum" not in one and one.get("type") != "string")]
    numbers = any(one.get("type") in ("integer", "number") for one in branches)
    words: list[str] = []
    for one in branches:
        if numbers and one.get("type") == "string" and _IN_QUOTES.match(one.get("pattern", "")):
            continue
        word = _word(one)
        if word not in words:
            words.append(word)
    return ", ".join(words)


def _word(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return _shape(schema)
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_shape(schema.get('items', {})) or 'values'}"
    if kind == "object":
        values = schema.get("additionalProperties")
        inner = _shape(values) if isinstance(values, dict) else ""
        return f"mapping to {inner}" if inner else "mapping"
    if isinstance(kind, list):
        return " or ".join(_NAMES[one] for one in kind if one != "null")
    return _NAMES.get(str(kind), "any value")


_IN_QUOTES = re.compile(r"\^\\s\*(\(\?:)?\\\+\?")  # patterns of numbers begin with a sign that may be there
_NAMES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}


# -- Markdown ----------------------------------------------------------------------------------------------------------


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", _MADE, *(part.strip() for part in parts))) + "\n"


def _plain(template: str) -> str:
    return template.replace("{", "<").replace("}", ">")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(text: str) -> str:
    """Within a table: what is not in backquotes must be no HTML, and a bar would end the cell."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


PAGES: Mapping[str, Callable[[], str]] = {
    "job-file.md": job_file,
    "environment.md": environment,
    "failure-classes.md": failure_classes,
    "compute-settings.md": compute_settings,
    "exit-codes.md": exit_codes,
    "events.md": events,
    "report.md": report,
}


def outdated() -> Iterator[tuple[Path, str]]:
    """The pages that are not as the code says, each with what it should hold."""
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.is_file() or path.read_text() != text:
            yield path, text


def main() -> int:
    found = list(outdated())
    for path, text in found:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return int(bool(found) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
