"""What a run is made of: its command and inputs, its code, who submitted it, its Python, and its machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.bootstrap.spec import package_lists
from jobsdk.bootstrap.spec.text import bytes_text
from jobsdk.snapshot.git import Commit

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.runs.folder import RunFolder

#: The property of a job that calls a function: the function's name.
FUNCTION = "jobsdk.function"
#: Packages that a summary names.
_FRAMEWORKS = (
    "torch",
    "tensorflow",
    "jax",
    "deepspeed",
    "transformers",
    "lightning",
    "accelerate",
    "horovod",
    "mpi4py",
)


class Python(NamedTuple):
    """The Python of the ranks, as the first one on node 0 reported it."""

    version: str
    executable: str
    packages: Mapping[str, str]  # the version of each, as in `pip freeze`

    def __str__(self) -> str:
        known = [f"{name} {self.packages[name]}" for name in _FRAMEWORKS if name in self.packages]
        count = f"{len(self.packages)} packages" if self.packages else "packages not recorded here"
        return ", ".join([f"{self.version} ({self.executable})", *known, count])


class Machine(NamedTuple):
    """One node, as its bootstrap saw it."""

    node: int
    host: str | None
    system: str  # kernel and release
    cores: int
    memory: int | None  # bytes
    gpus: tuple[str, ...]  # their models
    driver: str | None  # of NVIDIA

    @property
    def kind(self) -> str:
        """What it has, without its name."""
        gpus = [f"{count} x {model}" for model, count in Counter(self.gpus).items()]
        driver = [f"driver {self.driver}"] if self.driver else []
        memory = [bytes_text(self.memory)] if self.memory else []
        return ", ".join([*gpus, *driver, f"{self.cores} cores", *memory, self.system])


class Provenance(NamedTuple):
    """What is None, or empty, is not known: of a run that has not started, or that an older jobsdk submitted."""

    command: str  # with the values of its inputs
    inputs: Mapping[str, str]
    commit: Commit | None
    submitted_by: str | None  # user@host
    submitted_from: str | None  # the working directory
    jobsdk: str | None  # the version that submitted it
    python: Python | None
    machines: tuple[Machine, ...]

    def summary(self) -> dict[str, object]:
        """For a table: each part in words."""
        at = f" from {self.submitted_from}" if self.submitted_from else ""
        by = f"{self.submitted_by or ''}{at}".strip()
        return {
            "inputs": dict(self.inputs),
            "git": self.commit and str(self.commit),
            "submitted": f"{by}, jobsdk {self.jobsdk}" if by and self.jobsdk else by or None,
            "python": self.python and str(self.python),
            "machines": machines_text(self.machines),
        }

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "rendered_command": self.command,
            "inputs": dict(self.inputs),
            "git": self.commit and self.commit._asdict(),
            "submitted_by": self.submitted_by,
            "submitted_from": self.submitted_from,
            "jobsdk_version": self.jobsdk,
            "python": self.python and {**self.python._asdict(), "packages": dict(self.python.packages)},
            "machines": [{**one._asdict(), "gpus": list(one.gpus)} for one in self.machines],
        }


def of_run(run: RunFolder) -> Provenance:
    """What the run's folder says of it."""
    facts, plan = run.facts(), run.plan()
    python, machines = _inventory(run)
    user, host = facts.get("user"), facts.get("host")
    return Provenance(
        command(run),
        {name: _input_text(plan, name) for name in plan.get("inputs", {})},
        Commit(**facts["git"]) if facts.get("git") else None,
        f"{user}@{host}" if user and host else host,
        facts.get("cwd"),
        facts.get("jobsdk"),
        python,
        machines,
    )


def command(run: RunFolder) -> str:
    """The command as `rendered_command` gives it; for a function's run, `NAME(...)`."""
    facts, plan = run.facts(), run.plan()
    called = (facts.get("properties") or {}).get(FUNCTION)
    if called is not None:
        return f"{called}(...)"
    return rendered_command(plan) if "command" in plan else str(facts.get("command") or "")


def rendered_command(plan: Plan) -> str:
    """The command with the inputs as they were given; `${{outputs.NAME}}` stays, as its path may be of any node."""
    words = []
    for part in plan["command"]:
        if isinstance(part, str):
            words.append(part)
        elif "input" in part:
            words.append(_input_text(plan, part["input"]))
        else:
            words.append("${{outputs." + part["output"] + "}}")
    return "".join(words)


def _input_text(plan: Plan, name: str) -> str:
    given: Any = plan["inputs"][name]
    return str(given["literal"] if "literal" in given else given["uri"])


def _inventory(run: RunFolder) -> tuple[Python | None, tuple[Machine, ...]]:
    """The latest of each node: another machine may have taken its place."""
    hosts: dict[int, str] = {}
    python, machines = None, {}
    for event in run.events():
        node = event.get("node")
        if node is None:
            continue
        if event["event"] == "node_joined":
            hosts[node] = event["host"] or ""
        elif event["event"] == "inventory":
            machines[node] = Machine(
                node,
                hosts.get(node),
                event["system"],
                event["cores"],
                event["memory"],
                tuple(event["gpus"]),
                event["driver"],
            )
            given = event.get("python")
            if given:
                packages = given.get("packages") or run.read_json(package_lists.FILE)
                python = Python(given["version"], given["executable"], packages)
    return python, tuple(machines[node] for node in sorted(machines))


def machines_text(machines: Iterable[Machine]) -> str | None:
    """`2 nodes: 8 x NVIDIA H100, ...; 1 node: ...`; equal machines once."""
    kinds = Counter(machine.kind for machine in machines)
    return "; ".join(f"{count} node{'s' * (count > 1)}: {kind}" for kind, count in kinds.items()) or None
