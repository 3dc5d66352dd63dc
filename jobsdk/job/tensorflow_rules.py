"""Rules about a TensorFlow script that the command plainly names: whether the job gives its strategy what it needs.

The script is read, never run, and only what is certain is reported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.findings import Report
from jobsdk.job.distribution import TensorFlowDistribution
from jobsdk.job.paths import is_local
from jobsdk.job.rules import rule

if TYPE_CHECKING:
    import ast
    from pathlib import Path

    from jobsdk.job.command import CommandJob
    from jobsdk.job.shell import Word

_MIRRORED, _SERVED = "MultiWorkerMirroredStrategy", "ParameterServerStrategy"
_LEGACY = "TF_USE_LEGACY_KERAS"
#: Arguments that tell Keras' `fit` from those of other libraries.
_OF_KERAS = frozenset("epochs steps_per_epoch validation_data validation_split callbacks initial_epoch verbose".split())
_LARGEST = 1 << 20  # bytes of a script that is still looked into


class _Script(NamedTuple):
    """What a script does, as far as the rules want to know."""

    word: Word  # its name in the command
    calls: frozenset[str]  # the last names of what it calls, except what belongs to TensorFlow 1
    fits: bool  # it calls Keras' `fit`
    texts: frozenset[str]
    makes_cluster: bool  # it tells TensorFlow itself who takes part
    chooses_keras: bool  # it, or a module beside it, may see to it that Keras is version 2


@rule("command", "code", "distribution", "resources")
def tensorflow_is_the_distribution(job: CommandJob, report: Report) -> None:
    """Strategies of several workers read TF_CONFIG, which only one type of distribution sets."""
    given = job.distribution
    if given is not None and given.type in ("tensorflow", "ray"):  # Ray Train sets it by itself
        return
    script = _read(job)
    if script is None or script.makes_cluster:
        return
    processes = job.resources.instance_count * ((given and given.process_count_per_instance) or 1)
    strategy = next((name for name in (_SERVED, _MIRRORED) if name in script.calls), None)
    if strategy == _SERVED or (strategy and processes > 1):
        kind = f"the type {given.type}" if given else "a job without a distribution"
        message = f"{script.word} uses {strategy}, which reads TF_CONFIG, and {kind} does not set it"
        report.warn(("command",), message, "write 'distribution: {type: tensorflow}'", within=script.word)


@rule("command", "code", "distribution", "resources")
def strategy_has_its_tasks(job: CommandJob, report: Report) -> None:
    """The job has the roles that the script's strategy works with."""
    given = job.distribution
    if not isinstance(given, TensorFlowDistribution):
        return
    script = _read(job)
    if script is None or script.makes_cluster:
        return
    if _SERVED in script.calls:
        if not given.parameter_server_count:
            message = f"{script.word} uses {_SERVED}, which fails without a parameter server"
            report.warn(("distribution",), message, "add 'parameter_server_count: 1'")
        if not given.chief:
            message = f"{script.word} uses {_SERVED}, and without a chief nobody gives the workers anything to do"
            report.warn(("distribution",), message, "add 'chief: true'")
    elif _MIRRORED in script.calls:
        if given.parameter_server_count and "Server" not in script.calls and "ps" not in script.texts:
            message = f"{script.word} uses {_MIRRORED}, which fails in a parameter server"
            report.warn(("distribution", "parameter_server_count"), message, "remove it: each worker has all weights")
    elif "MirroredStrategy" in script.calls and _workers(job) > 1:
        message = f"{script.word} uses MirroredStrategy, which knows one machine: each worker trains a model of its own"
        report.warn(("command",), message, f"use {_MIRRORED}", within=script.word)


@rule("command", "code", "distribution", "resources", "environment_variables.*")
def fit_has_a_keras_that_can(job: CommandJob, report: Report) -> None:
    """Keras 3's `fit` fails under MultiWorkerMirroredStrategy (keras-team/keras#20585); Keras 2's works."""
    if not isinstance(job.distribution, TensorFlowDistribution) or _workers(job) < 2 or _LEGACY in (job.command or ""):
        return
    if str(job.environment_variables.get(_LEGACY)) in ("1", "true", "True"):  # the values that TensorFlow knows
        return
    script = _read(job)
    if script and script.fits and _MIRRORED in script.calls and not script.chooses_keras:
        message = f"{script.word} calls fit under {_MIRRORED}, where that of Keras 3 fails"
        fix = f"set {_LEGACY} to 1 in environment_variables and install tf_keras, or write the loop with strategy.run"
        report.warn(("command",), message, fix, within=script.word)


def _workers(job: CommandJob) -> int:
    """Processes that train, the chief among them."""
    workers: int = getattr(job.distribution, "worker_count", None) or job.resources.instance_count
    return workers + bool(getattr(job.distribution, "chief", False))


def _read(job: CommandJob) -> _Script | None:
    """The Python script that the command plainly names, if it is here, names a strategy and can be understood."""
    from jobsdk.job.shell import scripts

    if job.code is None or not is_local(job.code):
        return None
    code = job.resolve(job.code)
    for word in scripts(job.command or ""):
        path = code if os.path.isfile(code) else code / word
        content = _content(path)
        if b"tensorflow" in content and b"Strategy" in content:
            return _understand(word, content, path.parent)
    return None


def _content(path: Path) -> bytes:
    """Of a Python file; nothing if it cannot be read, or is huge."""
    try:
        if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LARGEST:
            return path.read_bytes()
    except OSError:
        pass
    return b""


def _understand(word: Word, content: bytes, folder: Path) -> _Script | None:
    import ast

    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # for Python to complain about
        return None
    made = [node for node in nodes if isinstance(node, ast.Call)]
    names = {_dotted(call.func) for call in made}
    calls = frozenset(name.rpartition(".")[2] for name in names if "compat.v1" not in name)
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    texts = frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    # What a module beside it says about Keras may well hold for the script.
    beside = b"".join(_content(folder / f"{name.replace('.', '/')}.py") for name in imports)
    return _Script(
        word,
        calls,
        any(_is_fit(call) for call in made),
        texts,
        any(_sets_tf_config(node) for node in nodes) or any(map(_is_other_resolver, calls)),
        _LEGACY in texts
        or any(name.partition(".")[0] == "tf_keras" for name in imports)
        or any(mark in beside for mark in (b"tf_keras", _LEGACY.encode())),
    )


def _dotted(function: ast.expr) -> str:
    """a.b.c for what is called so; what comes before a call or an index is left out."""
    import ast

    names = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    names.append(function.id if isinstance(function, ast.Name) else "")
    return ".".join(reversed(names))


def _is_fit(call: ast.Call) -> bool:
    import ast

    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "fit"
    return is_method and any(keyword.arg in _OF_KERAS for keyword in call.keywords)


def _is_other_resolver(name: str) -> bool:
    return name.endswith("ClusterResolver") and name != "TFConfigClusterResolver"


def _sets_tf_config(node: ast.AST) -> bool:
    """Whether this puts TF_CONFIG into an environment."""
    import ast

    key: object = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        key = node.slice
    elif isinstance(node, ast.Call) and _dotted(node.func).endswith((".setdefault", ".putenv")):
        key = node.args[0] if node.args else None
    elif isinstance(node, ast.Dict):
        return any(isinstance(each, ast.Constant) and each.value == "TF_CONFIG" for each in node.keys)
    return isinstance(key, ast.Constant) and key.value == "TF_CONFIG"
