"""Typical mistakes, each with the exit code and the first line of what is said: what is wrong, where, how to fix it.

Nothing here is a traceback. Those of `HABITS` are what people type who know torchrun, az ml, submitit or Slurm.
"""

# ruff: noqa: E501  (a line for each mistake)

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.cli import main

from .conftest import Jobsdk

FILES = {
    "train.py": "print('hi')\n",
    "src/train.py": "print('hi')\n",
    "data/d.csv": "1\n",
    "pi.py": "if False:\n    from mpi4py import MPI\n",
    "nodes.sh": "#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n",
    "job.yml": "command: echo hi\n",
    "indent.yml": "command: python train.py\n code: ./src\n",
    "colon.yml": "command: echo a: b\n",
    "tab.yml": "command: echo\n\tcode: .\n",
    "twice.yml": "command: a\ncommand: b\n",
    "typo.yml": "comand: python train.py\n",
    "list.yml": "- a\n- b\n",
    "empty.yml": "",
    "count.yml": "command: a\nresources: {instance_count: two}\n",
    "null.yml": "command: a\nenvironment_variables: {A: }\n",
    "type.yml": "command: a\ndistribution: {type: pytroch}\n",
    "input.yml": "command: echo ${{inputs.epochs}}\n",
    "path.yml": "command: cat ${{inputs.d}}\ninputs: {d: {type: uri_folder, path: dat}}\n",
    "code.yml": "command: python train.py\ncode: ./sorce\n",
    "script.yml": "command: python trian.py\ncode: ./src\n",
    "home.yml": "command: python x.py\ncode: ~/code\n",
    "rank.yml": "command: a\nenvironment_variables: {RANK: 1}\n",
    "soon.yml": "command: a\nlimits: {timeout: soon}\n",
    "hour.yml": "command: a\nlimits: {timeout: 1h}\n",
    "other.yml": "command: a\ncompute: gpu-cluster\n",
    "nested.yml": "command: torchrun train.py\ncode: ./src\ndistribution: {type: pytorch, process_count_per_instance: 2}\n",
    "sweep.yml": "type: sweep\ntrial: {command: a}\n",
    "long.yml": f"command: echo {'x' * 140_000}\n",
    "large.yml": f"command: a\nenvironment_variables: {{BIG: '{'x' * 140_000}'}}\n",
}

#: A command line, its exit code, and a pattern of the first line that is said.
Case = tuple[str, int, str]

MISTAKES: list[Case] = [
    # job files
    ("job validate indent.yml", 2, r"indent\.yml:2:6: error: this key is indented differently .* Fix: align it with line 1"),
    ("job validate colon.yml", 2, r"colon\.yml:1:16: error: this line has a second ':'\. Fix: put the value in quotes"),
    ("job validate tab.yml", 2, r"tab\.yml:2:1: error: a tab indents this line\. Fix: indent with spaces"),
    ("job validate twice.yml", 2, r"twice\.yml:2:1: error: command: is given twice, first in line 1\. Fix: keep one"),
    ("job validate typo.yml", 2, r"typo\.yml:1:1: error: comand: .* Fix: did you mean 'command'\?"),
    ("job validate list.yml", 2, r"list\.yml:1:1: error: a job file must be a mapping, not a list\. Fix: write 'key: value'"),
    ("job validate empty.yml", 2, r"empty\.yml: error: the file is empty\. Fix: write a job: 'command: \.\.\.'"),
    ("job validate count.yml", 2, r"count\.yml:2:29: error: resources\.instance_count: must be a whole number, got 'two'"),
    ("job validate null.yml", 2, r"null\.yml:2:\d+: error: environment_variables\.A: .*got null"),
    ("job validate type.yml", 2, r"type\.yml:2:22: error: distribution\.type: unknown type 'pytroch'\. Fix: did you mean 'pyto"),
    ("job validate input.yml", 2, r"input\.yml:1:15: error: command: .*not declared\. Fix: declare 'epochs' under inputs"),
    ("job validate path.yml", 2, r"path\.yml:2:38: error: inputs\.d\.path: there is no 'dat'\. Fix: did you mean 'data'\?"),
    ("job validate code.yml", 2, r"code\.yml:2:7: error: code: there is no '\./sorce'\. Fix: did you mean 'src'\?"),
    ("job validate script.yml", 2, r"script\.yml:1:17: error: command: trian\.py is not in .* Fix: did you mean 'train\.py'\?"),
    ("job validate home.yml", 2, r"home\.yml:2:7: error: code: there is no '~/code'\. Fix: it stands for /.*/code"),
    ("job validate rank.yml", 2, r"rank\.yml:2:25: error: environment_variables\.RANK: is set for each process .* Fix: remove it"),
    ("job validate soon.yml", 2, r"soon\.yml:2:19: error: limits\.timeout: must be a length of time: seconds, or text such as"),
    ("job validate hour.yml", 0, r"hour\.yml: valid"),
    ("job validate other.yml", 0, r"other\.yml:2:10: warning: compute: there is no compute 'gpu-cluster'\. Fix: add it to"),
    ("job validate nested.yml", 0, r"nested\.yml:1:10: warning: command: torchrun would start .* Fix: write the command without"),
    ("job validate sweep.yml", 2, r"sweep\.yml:1:7: error: type: jobs of the type sweep do not run here\. Fix: submit it with"),
    ("job validate long.yml", 2, r"long\.yml:1:10: error: command: has 140,005 bytes, .*131,071.* Fix: put it into a file"),
    ("job validate large.yml", 2, r"large\.yml:2:\d+: error: environment_variables\.BIG: has 140,004 bytes, .* Fix: put it into"),
    ("job validate nosuch.yml", 2, r"nosuch\.yml: error: there is no such file\. Fix: the working directory is /"),
    ("job validate src", 2, r"src: error: is a folder, not a job file\. Fix: name the file in it, such as job\.yml"),
    ("job create", 2, r"error: Give one job file: -f job\.yml"),
    # running
    ("run", 2, r"error: Missing argument 'COMMAND\.\.\.'"),
    ("run job.yml", 2, r"error: job\.yml is not a command: did you mean 'jobsdk job create -f job\.yml'\?"),
    ("run trian.py", 2, r"error: command: trian\.py is not in the code folder .* Fix: did you mean 'train\.py'\?"),
    ("run nodes.sh", 2, r"error: nodes\.sh is a file, but not on PATH\. Fix: bash nodes\.sh, or \./nodes\.sh"),
    ("run 'python train.py && echo x'", 2, r"error: 'python train\.py && echo x' is one word\. Fix: leave out the quotes"),
    ("run --nodes 0 train.py", 2, r"error: Invalid value for '--nodes': '0' is not a number of nodes\. Fix: --nodes 2"),
    ("run --name 'a b' train.py", 2, r"error: name: must be a name of letters, digits, - and _, got 'a b'\. Fix: begin"),
    ("run --env FOO train.py", 2, r"error: --env FOO: it is not set here\. Fix: --env FOO=VALUE"),
    ("run --compute gpu train.py", 2, r"error: there is no compute 'gpu'\. Fix: add it to .*computes\.yml as"),
    ("run --hang-timeout soon train.py", 2, r"error: .*'soon' is not a length of time\. Fix: write seconds, or 90s"),
    ("run --set resources.instance_cuont=2 train.py", 2, r"--set: error: resources\.instance_cuont: .* Fix: did you mean"),
    ("run -n 2 pi.py", 0, r"warning: command: pi\.py uses mpi4py, .* Fix: add --distribution mpi"),
    # runs
    ("job show", 2, r"error: Give the name of one run\."),
    ("job show nosuch", 2, r"error: there is no run named 'nosuch' in .*: `jobsdk job list` shows"),
    ("job delete", 2, r"error: Give the names of the runs to delete\."),
    ("job list --query '[0'", 2, r"error: Invalid value for '--query': '\[0' is not JMESPath"),
    ("job explain job.yml --rank 9", 2, r"error: there is no rank 9: the job has rank 0 only"),
    # computes
    ("compute check gpu", 2, r"error: there is no compute 'gpu'\. Fix: add it to"),
    ("compute add x --type slrum", 2, r"error: there is no compute type 'slrum': did you mean 'slurm'\?"),
    ("compute add x --type slurm --set partion=gpu", 2, r"error: compute x: type slurm has no setting 'partion': did you"),
]  # fmt: skip

HABITS: list[Case] = [
    # torchrun
    ("--nnodes 2 train.py", 2, r"error: --nnodes is an option of run\. Fix: jobsdk run --nnodes \.\.\."),
    ("--nproc_per_node 2 train.py", 2, r"error: --nproc_per_node is an option of run\. Fix: jobsdk run --nproc_per_node"),
    ("torchrun train.py", 2, r"error: No such command 'torchrun'\. Did you mean 'jobsdk run -n 2 train\.py'\?"),
    ("run --nproc_per_node gpu train.py", 2, r"error: --processes gpu: no GPU is visible on this machine\. Fix: --processes 1"),
    ("run --nproc_per_node two train.py", 2, r"error: .*'two' is not a number of processes\. Fix: --processes 2, or gpu"),
    ("run --nnodes 1:4 train.py", 2, r"error: .*a run keeps its number of nodes, so 1:4 is not possible\. Fix: --nodes 4"),
    ("run --rdzv-conf timeout=3 train.py", 2, r"error: there is no option --rdzv-conf here: write --set limits\.rendez"),
    ("run --node_rank 1 --nnodes 2 train.py", 2, r"error: --node-rank: one command starts all nodes: write --nodes N once"),
    ("run --gpus 2 train.py", 2, r"error: there is no option --gpus here: .*write --processes N"),
    ("run --rdzv-backend c10d train.py", 0, r"warning: --rdzv-backend has no effect: the nodes find each other"),
    ("run --distribution horovod train.py", 2, r"error: .*'horovod' is not a distribution\. Fix: --distribution mpi"),
    # az ml
    ("create -f job.yml", 2, r"error: No such command 'create'\. Did you mean 'jobsdk job create'\?"),
    ("ml job create -f job.yml", 2, r"error: No such command 'ml'\. Did you mean 'jobsdk job'\?"),
    ("job list -g rg -w ws", 2, r"error: there is no option -g here: the workspace is in the compute's settings"),
    ("job create -f job.yml --web", 2, r"error: there is no option --web here: jobsdk ui opens the page"),
    ("job get nosuch", 2, r"error: No such command 'get'\. Did you mean 'jobsdk job show NAME'\?"),
    ("job list --status finnished", 2, r"error: there is no status 'finnished'; "),
    # Slurm and submitit
    ("sbatch nodes.sh", 2, r"error: No such command 'sbatch'\. Did you mean 'jobsdk job create job\.yml --compute NAME'\?"),
    ("squeue", 2, r"error: No such command 'squeue'\. Did you mean 'jobsdk job list'\?"),
    ("scancel 12", 2, r"error: No such command 'scancel'\. Did you mean 'jobsdk job cancel NAME'\?"),
    ("submit job.yml", 2, r"error: No such command 'submit'\. Did you mean 'jobsdk job create job\.yml --compute NAME'\?"),
    ("job status nosuch", 2, r"error: No such command 'status'\. Did you mean 'jobsdk job show NAME'\?"),
    ("run --ntasks 4 train.py", 2, r"error: there is no option --ntasks here: write --processes N for N processes"),
    ("logs nosuch", 2, r"error: No such command 'logs'\. Did you mean 'jobsdk job logs'\?"),
    ("version", 2, r"error: No such command 'version'\. Did you mean 'jobsdk --version'\?"),
]  # fmt: skip


@pytest.fixture
def made(work: Path) -> Path:
    for name, text in FILES.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    return work


@pytest.mark.parametrize(("line", "code", "said"), [*MISTAKES, *HABITS], ids=lambda one: str(one)[:60])
def test_a_mistake_is_said_in_one_line(
    line: str, code: int, said: str, made: Path, jobsdk: Jobsdk, capfd: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    if words[0] == "run":  # what it starts ahead lives as long as its process
        done = jobsdk(*words)
        found, out, err = done.code, done.out, done.err
    else:
        found = main(words)
        out, err = capfd.readouterr()
    first = (err.splitlines() or out.splitlines())[0]
    assert found == code
    assert re.match(said, first), first
    assert "Traceback" not in err


def test_there_are_enough_of_them() -> None:
    assert len(MISTAKES) + len(HABITS) + len(SCRIPTS) >= 60
    assert len(HABITS) >= 20


#: A script, and the lines that Python ends with: the script's own, then the message.
SCRIPTS = [
    ("command(comand='x')", r"error: comand: command\(\) has no such parameter\. Fix: did you mean 'command'\?"),
    ("command(command='x', inputs=3)", "error: inputs: .* Fix: pass a dict: {'name': value}"),
    ("MLClient().jobs.stream(None)", r"expected the name of a run, or a Run, got None\. Fix: pass run or run\.name"),
    ("MLClient().jobs.get('nosuch')", "there is no run named 'nosuch' in .*"),
    ("MLClient().jobs.create_or_update(command(command='python t.py', code='./no'))",
     "(?s)error: code: there is no './no'. Fix: paths are relative to .*"),
    ("command(command='x', instance_count='two')", "error: resources.instance_count: must be a whole number, got 'two'.*"),
    ("command(command='x', distribution='pytroch')", "error: distribution.*"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "said"), SCRIPTS)
def test_a_script_ends_with_its_own_line_and_the_message(statement: str, said: str, work: Path) -> None:
    (work / "script.py").write_text(f"from jobsdk import MLClient, command\n\n{statement}\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "script.py"], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n  File ") == 1, "only the script's own frame is shown"
    assert f'File "{work}/script.py", line 3, in <module>' in done.stderr
    message = done.stderr.split(f"    {statement}\n")[1]
    name, _, text = message.lstrip(" ^~\n").partition(": ")
    assert name.startswith("jobsdk.errors.")
    assert re.match(said, text), text


def test_an_error_of_the_script_itself_looks_as_ever(work: Path) -> None:
    (work / "script.py").write_text("from jobsdk import command\n\ncommand(command='x')\n1 / 0\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "script.py"], cwd=work, env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
