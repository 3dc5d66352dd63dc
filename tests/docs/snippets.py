"""The snippets of README, docs/ and SKILL.md, and where each that cannot be run as it stands is run instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Snippet(NamedTuple):
    """A fenced block: its page, the line of its fence, its language ("" for none), and what is in it."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Line(NamedTuple):
    """A command of a block of shell. `code` is the exit code that its comment promises."""

    page: str
    text: str
    code: int

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


class Elsewhere(NamedTuple):
    """Why what `pattern` is found in, on pages that `page` fits, is not run here, and the tests that do run it."""

    page: str
    pattern: str
    why: str
    tests: str


def pages() -> list[str]:
    found = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
    return [page for page in found if not page.startswith("docs/reference/")]


def snippets(language: str | None = None, page: str | None = None) -> list[Snippet]:
    found = []
    for name in [*pages(), "SKILL.md"] if page is None else [page]:
        text = (ROOT / name).read_text()
        for block in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if language is None or block[1] == language:
                found.append(Snippet(name, text.count("\n", 0, block.start()) + 1, block[1], block[2]))
    return found


def lines(page: str | None = None) -> list[Line]:
    """The commands of the blocks of shell, and those that stand after a `$` in a block without a language."""
    found = []
    for one in snippets(page=page):
        without_files = re.sub(r"^cat >.*<<'(\w+)'\n(?:.*\n)*?\1\n", "", one.text, flags=re.MULTILINE)
        for text in without_files.replace("\\\n", " ").splitlines() if one.language in ("sh", "") else ():
            if one.language == "" and not text.startswith("$ "):
                continue
            command, _, comment = text.removeprefix("$ ").partition("  #")
            promised = re.match(r" exit code (\d+)", comment)
            if command.strip() and not command.startswith("#"):
                found.append(Line(one.page, command.strip(), int(promised[1]) if promised else 0))
    return found


def elsewhere(table: list[Elsewhere], page: str, text: str) -> Elsewhere | None:
    return next((one for one in table if re.search(one.page, page) and re.search(one.pattern, text)), None)


_CLUSTER = r"(compute check|job create -f \S+ --compute|run --compute) (gpu-cluster|cluster|lake|lab|ray\S*)\b"
#: Commands. The first that fits counts.
COMMANDS = [
    Elsewhere("docs/tutorials/", ".", "in order, with their output", "tests/docs/test_tutorials.py"),
    Elsewhere("azure-emulator", ".", "it starts Azurite", "tests/emulator/test_docs.py"),
    Elsewhere("plugin", "pip install|jobsdk_spool", "into a folder of its own", "tests/docs/test_plugin.py"),
    Elsewhere("", r"^(python3 -m venv \S+ && \S+)?pip install|^\. \.venv", "it installs", "scripts/newcomer.py"),
    Elsewhere("bootstrap", "^python job.pyz", "computes put it there", "tests/bootstrap/agent/test_cluster_node.py"),
    Elsewhere("examples", ".", "data in the repository", "tests/examples/test_cifar10.py"),
    Elsewhere("mpi", ".", "inside of a job of several nodes", "tests/bootstrap/remote_shell/test_ssh.py"),
    Elsewhere("running", "mlflow ui", "a server that goes on", "tests/frameworks/test_mlflow.py"),
    Elsewhere("", "^jobsdk ui", "a server that goes on", "tests/ui"),
    Elsewhere("failures", "stacks", "of a run that goes on", "tests/cli/test_stacks.py"),
    Elsewhere("azureml", _CLUSTER, "it asks a workspace", "tests/compute/azureml"),
    Elsewhere("kubernetes", _CLUSTER, "it asks a cluster", "tests/compute/kubernetes"),
    Elsewhere("spark", _CLUSTER, "it asks a cluster", "tests/compute/spark"),
    Elsewhere("ray", _CLUSTER, "it asks a cluster", "tests/compute/ray"),
    Elsewhere("ssh", _CLUSTER, "it asks machines", "tests/compute/ssh/test_ssh.py"),
    Elsewhere("README|quickstart|slurm", _CLUSTER, "it asks a cluster", "tests/compute/slurm/test_runs.py"),
]
#: Blocks of Python.
PYTHON = [
    Elsewhere("docs/tutorials/", ".", "in order, with their output", "tests/docs/test_tutorials.py"),
    Elsewhere("azure-emulator", ".", "it needs Azurite", "tests/emulator/test_docs.py"),
    Elsewhere("azureml-differences", ".", "azure-ai-ml is a second to import", "tests/azureml/test_entities.py"),
    Elsewhere("azureml.md", ".", "it asks a workspace", "tests/compute/azureml/test_runs.py"),
    Elsewhere("failures", "JobFailed", "of a run that failed", "tests/docs/test_failures.py"),
    Elsewhere("functions", ".", "as a program and in its parts", "tests/functions/test_runs.py"),
    Elsewhere("docs/ray-train", ".", "on this machine and on Ray", "tests/compat/test_torch_trainer.py"),
    Elsewhere("docs/scaling", ".", "on several computes", "tests/job/test_scaling.py"),
    Elsewhere("docs/torch-distributor", ".", "beside PySpark's", "tests/spark_parity/test_parity.py"),
    Elsewhere("docs/train", "init_process_group", "as a job of two ranks", "tests/train/test_page.py"),
]
#: Blocks of YAML that are neither a job, nor fields of one, nor a computes.yml.
YAML = [
    Elsewhere("kubernetes", "^apiVersion", "rights, for kubectl", "tests/compute/kubernetes"),
]


def program(command: str) -> list[str] | None:
    """The words after `jobsdk`, of a command that is nothing else; without redirections."""
    words = shlex.split(command)
    return words[1:] if words[:1] == ["jobsdk"] else None
