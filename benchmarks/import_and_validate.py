"""The time to import a library and describe one job, and to check a job file."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Figures, Row, Table
from benchmarks.launchers import BIN

_JOB_FILE = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
display_name: example
experiment_name: benchmark
code: src
command: python train.py --data ${{inputs.data}} --epochs ${{inputs.epochs}} --model ${{outputs.model}}
inputs:
  data: {type: uri_folder, path: ./src}
  epochs: 10
outputs:
  model: {type: uri_folder}
environment: azureml:pytorch:1
environment_variables: {LOG_LEVEL: info}
compute: local
distribution: {type: pytorch, process_count_per_instance: 2}
resources: {instance_count: 2}
"""

_AZURE_COMMAND = """
command(
    code="src",
    command="python train.py --epochs ${{inputs.epochs}}",
    inputs={"epochs": 10},
    environment="pytorch:1",
    distribution=PyTorchDistribution(process_count_per_instance=2),
    instance_count=2,
)
"""
_DESCRIBE = {
    "jobsdk": "from jobsdk import PyTorchDistribution, command" + _AZURE_COMMAND,
    "azure-ai-ml": "from azure.ai.ml import MLClient, PyTorchDistribution, command" + _AZURE_COMMAND,
    "torchx": "from torchx.components.dist import ddp\nddp('--epochs', '10', script='src/train.py', j='2x2')",
    "submitit": "import submitit\n"
    "executor = submitit.AutoExecutor(folder='logs', cluster='local')\n"
    "executor.update_parameters(nodes=1, tasks_per_node=2)",
    "python -c pass": "pass",
}
_LOAD = {
    "jobsdk": "from jobsdk import load_job\nload_job('job.yml')",
    "azure-ai-ml": "from azure.ai.ml import load_job\nload_job('job.yml')",
}
_IMPORTS = {"azure-ai-ml": "azure.ai.ml", "torchx": "torchx", "submitit": "submitit"}
_LOCAL_DDP = ["run", "--dryrun", "-s", "local_cwd", "dist.ddp", "-j", "2x2", "--script", "src/train.py"]


def _present(name: str) -> bool:
    module = _IMPORTS.get(name)
    return module is None or harness.takes_part(module)


def _in_python(sources: Mapping[str, str]) -> dict[str, Sequence[str]]:
    return {name: [sys.executable, "-c", source] for name, source in sources.items() if _present(name)}


def _timed(command: Sequence[str], project: Path) -> Figures:
    with harness.scratch() as folder:
        return {"seconds": harness.run(command, folder=folder, cwd=project).seconds}


def measure(quick: bool) -> Table:
    check: dict[str, Sequence[str]] = {"jobsdk": [str(BIN / "jobsdk"), "job", "validate", "-f", "job.yml"]}
    if _present("torchx"):
        check["torchx"] = [str(BIN / "torchx"), *_LOCAL_DDP]
    figures = {
        "import and describe one job": _in_python(_DESCRIBE),
        "load a job file from Python": _in_python(_LOAD),
        "check a job on the command line": check,
    }
    rows = []
    with harness.scratch() as project:
        (project / "src").mkdir()
        (project / "src" / "train.py").write_text("print('trained')\n")
        (project / "job.yml").write_text(_JOB_FILE)
        for figure, commands in figures.items():
            medians = harness.rounds(
                {name: functools.partial(_timed, command, project) for name, command in commands.items()},
                1 if quick else 7,
            )
            rows.append(Row(figure, "s", {name: median["seconds"] for name, median in medians.items()}))
    return Table(
        "Import, describe, check",
        "Every figure is a whole process: interpreter, imports, work, exit. The same job for jobsdk and azure-ai-ml; "
        "torchx describes it with `dist.ddp`, submitit with an executor (neither has job files). On the command line: "
        "`jobsdk job validate -f job.yml` and `torchx run --dryrun`; azure-ai-ml has no command of its own.",
        "What each use of the library or its command costs before anything else happens.",
        rows,
    )
