"""Rules about DeepSpeed's configuration: that it can be read, and that its batch sizes come out even.

DeepSpeed itself finds these mistakes in every process, when all are up. Here they are found before anything runs, by
the same arithmetic as its `DeepSpeedConfig` has.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.findings import Path, Report, show
from jobsdk.job.distribution import DeepSpeedDistribution
from jobsdk.job.paths import is_local
from jobsdk.job.rules import rule

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.job.shell import Word

TOTAL, MICRO, STEPS = KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SEQUENCE, DATA = "sequence_parallel_size", "data_parallel_size"


class Misfit(NamedTuple):
    """What DeepSpeed would refuse in a configuration; without a key, it is the whole of it."""

    key: str | None
    message: str
    fix: str


class _Config(NamedTuple):
    """A configuration that the job names, and where it does."""

    content: Mapping[str, Any]
    path: Path
    file: str | None = None
    within: str = ""
    nth: int = 0


@rule("distribution", "resources", "command", "code")
def deepspeed_batches_come_out(job: CommandJob, report: Report) -> None:
    """train_batch_size is the product that DeepSpeed demands, under the number of processes that the job has."""
    distribution = job.distribution
    if not isinstance(distribution, DeepSpeedDistribution):
        return
    config = _config(job, distribution, report)
    if config is None:
        return
    nodes, each = job.resources.instance_count or 1, distribution.process_count_per_instance or 1
    content = {**config.content, MICRO: 1} if distribution.autotuning else config.content
    misfit = find_misfit(content, nodes, each)
    if misfit is None:
        return
    message = misfit.message
    if distribution.autotuning and MICRO in message:
        message += "; the autotuner's first trial has the micro batch size 1"
    if config.file is None:
        within_it = (misfit.key,) if misfit.key is not None and misfit.key in config.content else ()
        report.error((*config.path, *within_it), message, misfit.fix)
    else:
        message = f"in {show(config.file)}, {message}"
        report.error(config.path, message, misfit.fix, within=config.within, nth=config.nth)


@rule("distribution", "command", "code")
def deepspeed_config_is_passed_on(job: CommandJob, report: Report) -> None:
    """The configuration that the script gets exists, and the job's own one is given to it."""
    distribution, text = job.distribution, job.command or ""
    if not isinstance(distribution, DeepSpeedDistribution):
        return
    given, variable = distribution.config, "JOBSDK_DEEPSPEED_CONFIG"
    named = list(_named_in(text))
    if given is None and variable in text:
        message = f"{variable} is set only where the distribution has a config"
        report.error(("command",), message, "add distribution.config", within=variable)
    elif given is not None and named and str(given) not in named:
        message = f"{named[-1]} is named, and distribution.config is another configuration"
        fix = f"write --deepspeed_config ${variable}, or remove distribution.config"
        report.warn(("command",), message, fix, within=named[-1])
    elif given is None and named and job.code is not None and is_local(job.code):
        code = job.resolve(job.code)
        if os.path.isdir(code) and not os.path.exists(code / named[-1]):
            message = f"{named[-1]} is not in the code folder {show(job.code)}"
            report.warn(("command",), message, "put it there, unless the job makes it itself", within=named[-1])


def find_misfit(config: Mapping[str, Any], nodes: int, each: int) -> Misfit | None:
    """Why DeepSpeed would refuse the batch sizes of `config` on so many nodes with `each` processes, or None.

    "auto" stands for what transformers puts in, and the stages of a pipeline divide the processes by a number that
    only the script knows: both are left alone. So is `elasticity`, which sets the batch sizes itself.
    """
    given = {key: config[key] for key in KEYS if config.get(key) is not None}
    if "auto" in given.values() or any(config.get(section) for section in ("elasticity", "pipeline")):
        return None
    sizes = {key: config[key] for key in (SEQUENCE, DATA) if key in config}
    for key, value in {**given, **sizes}.items():
        if not (isinstance(value, int | float) and value > 0):
            return Misfit(key, f"{key} must be a number greater than 0, not {show(value)}", "write a whole number")
    processes = nodes * each
    if TOTAL not in given and MICRO not in given:
        message = f"neither {TOTAL} nor {MICRO} is given"
        return Misfit(None, message, f"add {MICRO}: 1, or more")
    ranks: float = processes
    counted = f"{processes} process{'es' * (processes > 1)} ({nodes} node{'s' * (nodes > 1)} x {each})"
    if len(sizes) == 2:
        ranks = sizes[DATA]
        if ranks * sizes[SEQUENCE] != processes:
            product = f"{DATA} {show(ranks)} x {SEQUENCE} {show(sizes[SEQUENCE])}"
            return Misfit(DATA, f"{product} is not the job's {counted}", "write sizes whose product it is")
        counted = f"{DATA} {show(ranks)}"
    elif SEQUENCE in sizes:
        ranks = processes / sizes[SEQUENCE]
        counted = f"{counted} / {SEQUENCE} {show(sizes[SEQUENCE])}"
    return None if _comes_out(given, ranks) else _uneven(given, ranks, counted)


def _comes_out(given: Mapping[str, Any], ranks: float) -> bool:
    """What DeepSpeed asserts once it has filled in, with its own roundings, what is not given."""
    total: Any
    micro: Any
    steps: Any
    total, micro, steps = (given.get(key) for key in KEYS)
    try:
        if total is not None and micro is not None:
            steps = total // micro // ranks if steps is None else steps
        elif total is not None:
            steps = 1 if steps is None else steps
            micro = total // ranks // steps
        else:
            steps = 1 if steps is None else steps
            total = micro * steps * ranks
        return bool(total > 0 and micro > 0 and steps > 0 and total == micro * steps * ranks)
    except (OverflowError, ZeroDivisionError):
        return False


def _uneven(given: Mapping[str, Any], ranks: float, counted: str) -> Misfit:
    factors = [key for key in (MICRO, STEPS) if key in given]
    named = " x ".join([*(f"{key} {show(given[key])}" for key in factors), counted])
    if TOTAL not in given:
        return Misfit(factors[0], f"{named} is no number that DeepSpeed can take", "write smaller whole numbers")
    total, unit = given[TOTAL], _product([ranks, *map(given.__getitem__, factors)])
    is_all = len(factors) == 2
    candidates = [unit] if is_all else [_product([unit, max(1, round(_quotient(total, unit)))]), unit]
    fit = next((one for one in map(_plain, candidates) if _comes_out({**given, TOTAL: one}, ranks)), None)
    fix = "write whole numbers" if fit is None else f"write {TOTAL}: {show(fit)}"
    if MICRO in given:
        fix += ", or leave it out: it follows from the others"
    relation = "is not" if is_all else "is no multiple of"
    product = f" = {show(_plain(unit))}" if factors or "/" in counted else ""
    return Misfit(TOTAL, f"{TOTAL} {show(total)} {relation} {named}{product}", fix)


def _product(factors: list[float]) -> float:
    try:
        return math.prod(factors)
    except OverflowError:
        return math.inf


def _quotient(number: float, by: float) -> float:
    """At most a number that can be rounded."""
    try:
        return min(number / by, 1e300)
    except (OverflowError, ZeroDivisionError):
        return 1e300


def _plain(number: float) -> float:
    """A whole number without `.0`."""
    return int(number) if math.isfinite(number) and number == int(number) else number


def _config(job: CommandJob, distribution: DeepSpeedDistribution, report: Report) -> _Config | None:
    """The configuration that the job itself names, and None where it names none or it cannot be read."""
    from jobsdk.bootstrap.launchers.deepspeed import parse_config

    given = distribution.config
    if isinstance(given, dict):
        return _Config(given, ("distribution", "config"))
    if job.code is not None and not is_local(job.code):
        return None
    text = job.command or ""
    named = [] if given else list(_named_in(text))
    word = named[-1] if named else None  # as argparse has it
    file = given or word
    if file is None or not os.path.isfile(resolved := job.resolve(job.code or ".") / file):
        return None  # one that is missing from the code is `deepspeed_config_exists`'s
    path: Path = ("distribution", "config") if word is None else ("command",)
    within, nth = ("", 0) if word is None else (str(word), text.count(word, 0, word.offset))
    try:
        content = parse_config(resolved.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        message = f"{show(file)} cannot be read as JSON: {error}"
        report.error(path, message, "correct the file, or write its content under distribution.config",
                     within=within, nth=nth)  # fmt: skip
        return None
    return _Config(content, path, str(file), within, nth)


def _with_equals(words: list[Word]) -> Iterator[tuple[str, Word]]:
    """`--option=value` as the two words that it stands for."""
    from jobsdk.job.shell import word_at

    for word in words:
        option, equals, value = word.partition("=")
        if equals and option.startswith("--"):
            yield option, word_at(value, word.offset + len(option) + 1)


def _named_in(text: str) -> Iterator[Word]:
    """The files after `--deepspeed_config`, or `--deepspeed` as transformers has it, where they are plain words."""
    from jobsdk.job.shell import simple_commands

    for words in simple_commands(text):
        if words[0] in ("cd", "pushd"):  # what follows is looked for elsewhere
            return
        for option, value in sorted([*pairwise(words), *_with_equals(words)], key=lambda pair: pair[1].offset):
            is_file = option == "--deepspeed_config" or (option == "--deepspeed" and value.endswith(".json"))
            if is_file and re.fullmatch(r"(?!/)[\w./@%+,:=-]+", value):
                yield value
