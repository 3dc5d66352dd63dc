"""Rules between the fields of a job. Each is one function; rules about files are in `file_rules`."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from jobsdk.findings import Path, Report, nearest, show
from jobsdk.job import expressions
from jobsdk.job.io import VALUE_TYPES, Input, Output
from jobsdk.job.kinds import MOST_RANKS

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.job.workers import Layout

#: How many findings of one kind are enough.
MANY = 50
#: Bytes of the longest text that a program can get.
MOST_BYTES = 128 * 1024 - 1

#: What tutorials begin a command with, where the distribution stands for it: each process would start all of them.
_OWN_LAUNCHERS = {"mpi": ("mpirun", "mpiexec", "orterun", "horovodrun", "srun"), "deepspeed": ("deepspeed",)}

Rule = Callable[["CommandJob", Report], None]

#: Each rule, with the fields that it reads: "inputs.*" for what is sound of a mapping:
#: what such a rule says of a part with errors of its own is left out.
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*reads: str) -> Callable[[Rule], Rule]:
    """Registers a rule. It is left out where a field that it reads has errors of its own."""

    def register(function: Rule) -> Rule:
        RULES.append((reads, function))
        return function

    return register


def judge(job: CommandJob, report: Report, lay_out: Callable[[], Layout | None] | None = None) -> None:
    """Applies all rules to a job; the report has what is already known to be wrong with its fields.

    `lay_out` gives the layout of a job with `scaling` where its compute is known; what is wrong with it is the caller's
    to say.
    """
    from jobsdk.job import deepspeed_rules, file_rules, secret_rules, tensorflow_rules  # noqa: F401  (register their rules)

    if job.is_of_another_type:
        return
    broken = {_meant(job, finding.path)[:2] for finding in report.findings if finding.is_error}
    job = _laid_out(job, report, broken, lay_out)
    for reads, function in RULES:
        if not any(_blocks(path, read) for path in broken for read in reads):
            found = Report(report.places, strict=report.strict)
            function(job, found)
            report.findings += [finding for finding in found.findings if not _is_known(finding.path, broken)]


def _laid_out(
    job: CommandJob, report: Report, broken: set[Path], lay_out: Callable[[], Layout | None] | None
) -> CommandJob:
    """The job as it is with its workers laid out, which is what the rules are about."""
    read = ("scaling", "torch_config", "resources", "distribution", "environment_variables")
    if (job.scaling is None and job.torch_config is None) or any(
        path[:1] in [(one,) for one in read] for path in broken
    ):
        return job
    from jobsdk.job import workers

    layout = workers.lay_out(job) if lay_out is None else lay_out()
    for finding in layout.findings if layout is not None else ():
        if finding.is_error:  # what is doubtful its compute may know better
            if lay_out is None:  # who has laid it out says so
                report.error(finding.path, finding.message, finding.fix)
            broken.add(finding.path[:2])
    return workers.applied(job, layout)


def _meant(job: CommandJob, path: Path) -> Path:
    """The path, with the field that a misspelt key was meant to be: what it holds is not known either."""
    if len(path) != 1 or path[0] in job._fields:
        return path
    return (job._hints.get(str(path[0])) or nearest(path[0], job._fields) or path[0],)


def _blocks(path: Path, read: str) -> bool:
    return path[:1] == (read,) or path == (read.removesuffix(".*"),)


def _is_known(path: Path, broken: set[Path]) -> bool:
    return not broken.isdisjoint((path[:2], path[:1], ()))


@rule("command")
def command_is_given(job: CommandJob, report: Report) -> None:
    """A job runs something. (azure-ai-ml: "command is required".)"""
    if job.command is None:
        report.error(("command",), "is missing", "add what to run, as in 'command: python train.py'")


@rule("command")
def expressions_are_whole(job: CommandJob, report: Report) -> None:
    """What looks like an expression is one."""
    text = job.command or ""
    for problem in islice(expressions.problems(text), MANY):
        add = report.error if problem.severity == "error" else report.warn
        nth = text.count(problem.text, 0, problem.offset)
        add(("command",), problem.message, problem.fix, within=problem.text, nth=nth)


@rule("command", "inputs.*", "outputs.*")
def references_are_declared(job: CommandJob, report: Report) -> None:
    """What the command refers to is declared; inside `$[[ ]]` an input may be absent."""
    given = job.given_inputs()
    text = job.command or ""
    seen = set()
    for ref, optional in expressions.references(text):
        if ref[:2] in seen or len(report.findings) > MANY:
            continue
        seen.add(ref[:2])
        declared = job.inputs if ref.namespace == "inputs" else job.outputs
        written = expressions.written(text, ref.offset)
        nth = text.count(written, 0, ref.offset)
        path, kind = ("command",), ref.namespace[:-1]
        if ref.name not in declared:
            near = nearest(ref.name, declared)
            fix = f"did you mean '{near}'?" if near else f"declare '{ref.name}' under {ref.namespace}"
            if written.startswith("{"):
                fix += "; for text that is no reference, put a space after '{'"
            if not optional or ref.namespace == "outputs":
                report.error(path, f"{written} names an {kind} that is not declared", fix, within=written, nth=nth)
            elif near:
                report.warn(path, f"{written} names no input, so its $[[ ]] is left out", fix, within=written, nth=nth)
        elif ref.namespace == "inputs" and ref.name not in given and not optional:
            fix = f"give it a value, or write $[[... {written}]]"
            report.error(path, f"{written} names an optional input that is not given", fix, within=written, nth=nth)


@rule("command", "inputs.*", "outputs.*")
def declared_are_used(job: CommandJob, report: Report) -> None:
    """What is declared is used: named in the command, or read from its variable there."""
    text = job.command or ""
    variables = {(f"{kind.lower()}s", name) for kind, name in re.findall(r"AZURE_ML_(INPUT|OUTPUT)_(\w+)", text)}
    doubtful = " ".join(problem.text for problem in islice(expressions.problems(text), MANY))
    used = {ref[:2] for ref, _ in expressions.references(text)} | variables
    for namespace, declared in (("inputs", job.inputs), ("outputs", job.outputs)):
        kind = namespace[:-1]
        for name in declared:
            if (namespace, name) not in used and f".{name}" not in doubtful:
                fix = f"use ${{{{{namespace}.{name}}}}}, or remove it"
                report.warn((namespace, name), f"this {kind} is not used in the command", fix, key=True)


@rule("command", "inputs.*")
def literals_are_one_word(job: CommandJob, report: Report) -> None:
    """Values are put into the command as text, as Azure ML does it, so a shell may split or interpret them."""
    text = job.command or ""
    seen = set()
    refs = [ref for ref, _ in expressions.references(text)]
    for ref, quote in zip(refs, expressions.quotes_at(text, [ref.offset for ref in refs]), strict=True):
        value = job.inputs.get(ref.name) if ref.namespace == "inputs" else None
        if not isinstance(value, str | int | float):
            continue
        shown = expressions.text_of(value)
        if (ref.name, quote) in seen or not expressions.breaks(shown, quote):
            continue
        seen.add((ref.name, quote))
        better = next((mark for mark in "'\"" if not expressions.breaks(shown, mark)), None)
        written = expressions.written(text, ref.offset)
        fix = f"write {better}{written}{better}" if better else "pass it in a file or an environment variable"
        message = f"the shell splits or interprets the value of {written}, {show(shown, 40)}"
        report.warn(("command",), message, fix, within=written, nth=text.count(written, 0, ref.offset))


@rule("distribution", "resources")
def workers_fit(job: CommandJob, report: Report) -> None:
    """A node runs one TensorFlow worker, as on Azure ML."""
    workers, nodes = getattr(job.distribution, "worker_count", None), job.resources.instance_count
    if workers is not None and workers > nodes:
        message = f"{workers} workers do not fit on {nodes} node{'s' * (nodes > 1)}: a node runs one"
        report.error(("distribution", "worker_count"), message, f"set resources.instance_count to {workers}")


@rule("distribution", "resources")
def nodes_are_used(job: CommandJob, report: Report) -> None:
    """Without a distribution, nodes do not know of each other."""
    if job.distribution is None and job.resources.instance_count > 1:
        message = f"without a distribution each of the {job.resources.instance_count} nodes runs the command once"
        report.warn(("resources", "instance_count"), message, "add 'distribution: {type: pytorch}' if they should meet")


@rule("distribution")
def autotuning_has_its_launcher(job: CommandJob, report: Report) -> None:
    """DeepSpeed's autotuner is part of its launcher."""
    tuned = getattr(job.distribution, "autotuning", None)
    if tuned and getattr(job.distribution, "launcher", None) != "deepspeed":
        report.error(
            ("distribution", "autotuning"), "only DeepSpeed's own launcher can do it", "add 'launcher: deepspeed'"
        )


@rule("distribution", "command")
def autotuning_has_its_script(job: CommandJob, report: Report) -> None:
    """DeepSpeed's autotuner starts a script again and again, each time with another configuration."""
    if not getattr(job.distribution, "autotuning", None) or getattr(job.distribution, "launcher", None) != "deepspeed":
        return
    from jobsdk.bootstrap.launchers import deepspeed_tuner
    from jobsdk.job.shell import simple_commands

    text = job.command or ""
    commands = list(simple_commands(text))
    if len(commands) != 1 or not deepspeed_tuner.fits(text) or text.rstrip().endswith(("&", ";", "|")):
        message = "DeepSpeed's autotuner starts one Python script, and nothing else"
        report.error(("command",), message, "write it as 'python train.py --deepspeed_config FILE ...'")
    elif not any(re.match("--deepspeed(_config)?(=|$)", word) for word in commands[0]):
        message = "names no configuration, in whose place DeepSpeed's autotuner would put its own"
        report.error(("command",), message, "add --deepspeed_config FILE, or $JOBSDK_DEEPSPEED_CONFIG")


@rule("command", "distribution", "resources")
def ranks_are_started_once(job: CommandJob, report: Report) -> None:
    """Under a distribution, jobsdk starts the command in every process already."""
    from jobsdk.job.shell import launcher

    if job.distribution is None or job.distribution.type == "ray":
        return
    text = job.command or ""
    found = launcher(text)
    if found is None:
        return
    message = f"{found} would start processes in every process that {job.distribution.type} starts"
    fix = f"write the command without {found}, or remove the distribution"
    processes = job.resources.instance_count * (job.distribution.process_count_per_instance or 1)
    is_its_own = found in _OWN_LAUNCHERS.get(job.distribution.type, ()) and processes > 1
    say = report.error if is_its_own else report.warn
    say(("command",), message, fix, within=found, nth=text.count(found, 0, found.offset))


@rule("distribution", "resources")
def ranks_can_be_counted(job: CommandJob, report: Report) -> None:
    """Nodes and processes have bounds of their own; so have all ranks together."""
    nodes, each = job.resources.instance_count, getattr(job.distribution, "process_count_per_instance", None) or 1
    if nodes * each > MOST_RANKS:
        path = ("distribution", "process_count_per_instance")
        message = (
            f"the job would have {nodes * each} ranks ({nodes} nodes x {each}), and at most {MOST_RANKS} are possible"
        )
        report.error(path, message, "ask for fewer nodes, or for fewer processes on each")


@rule("environment_variables.*")
def identity_is_not_set(job: CommandJob, report: Report) -> None:
    """A process's own identity is set for it, and differs from process to process."""
    from jobsdk.bootstrap.distributions.contract import IDENTITY

    for name in job.environment_variables:
        if name in IDENTITY or name.startswith("OMPI_COMM_WORLD_"):
            path = ("environment_variables", name)
            report.error(path, "is set for each process by jobsdk and cannot be set by the job", "remove it", key=True)


@rule("command", "environment_variables.*")
def texts_fit_into_a_program(job: CommandJob, report: Report) -> None:
    """Linux passes no string of more than 128 KiB to a program (MAX_ARG_STRLEN: 32 pages of 4 KiB, with its NUL)."""
    texts: dict[Path, str] = {("command",): job.command or ""}
    for name, value in job.environment_variables.items():
        texts["environment_variables", name] = f"{name}={value}"
    for path, text in texts.items():
        size = len(text.encode(errors="replace"))
        if size > MOST_BYTES:
            message = f"has {size:,} bytes, and Linux passes at most {MOST_BYTES:,} to a program"
            report.error(path, message, "put it into a file in the code folder")


@rule("environment_variables.*")
def master_port_is_a_port(job: CommandJob, report: Report) -> None:
    """A fixed MASTER_PORT must be one that can be listened on."""
    port = job.environment_variables.get("MASTER_PORT")
    if isinstance(port, str) and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        path = ("environment_variables", "MASTER_PORT")
        report.error(path, f"is no port: {show(port)}", "write a number from 1 to 65535, or leave it to jobsdk")


@rule("max_restarts", "retry_on", "never_retry_on")
def _rules_of_restarts_have_an_effect(job: CommandJob, report: Report) -> None:
    for name in ("retry_on", "never_retry_on"):
        given = getattr(job, name)
        if given is None:
            continue
        from jobsdk.bootstrap.failures.known_errors import CLASSES

        if not job.max_restarts:
            report.warn((name,), "has no effect: max_restarts is 0", "set max_restarts")
        for one in given if isinstance(given, list) else [given]:
            near = nearest(one, CLASSES) if isinstance(one, str) and one not in CLASSES else None
            if near and re.fullmatch("[a-z]+(_[a-z]+)+", str(one)):
                fix = f"did you mean '{near}'?"
                report.warn((name,), f"{show(one)} is no class of failures, and is looked for in the output", fix)


@rule("inputs.*")
def inputs_lead_somewhere(job: CommandJob, report: Report) -> None:
    """An input that is no value has a path, and a mode that its type knows."""
    for name, item in job.inputs.items():
        if not isinstance(item, Input):
            continue
        path = ("inputs", name)
        if item.path is None and not item.optional and item.type not in VALUE_TYPES:
            report.error(path, "has no path", "add 'path: ...'", key=True)
        if (item.mode or "").startswith("eval_") and item.type != "mltable":
            report.error((*path, "mode"), f"{item.mode} is only for the type mltable", "write ro_mount or download")


@rule("outputs.*")
def registered_outputs_have_a_name(job: CommandJob, report: Report) -> None:
    """A version belongs to a name."""
    for name, output in job.outputs.items():
        if isinstance(output, Output) and output.version is not None and output.name is None:
            report.error(("outputs", name, "version"), "is a version without a name", "add 'name: ...', or remove it")
