"""`make demo`: trains CIFAR-10 as 2 nodes x 2 processes on this machine and shows each step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobsdk import MLClient, load_job
from jobsdk.errors import JobsdkError

REPOSITORY = Path(__file__).resolve().parent.parent
SPEC = REPOSITORY / "job_specs/cifar10-pytorch.yml"
DATA = REPOSITORY / "data/cifar-10-batches-py"


def say(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def main() -> None:
    if not (DATA / "batches.meta").exists():
        say(f"Making a small data set in CIFAR-10's format in {DATA.relative_to(REPOSITORY)}")
        subprocess.run([sys.executable, REPOSITORY / "src_examples/cifar10/make_data.py", DATA], check=True)

    job = load_job(SPEC)
    explanation = job.explain()
    say(f"What {SPEC.relative_to(REPOSITORY)} will start (jobsdk job explain shows all of it)")
    print(explanation.command)
    for process in explanation:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")
        print("  " + " ".join(f"{name}={process.environment[name]}" for name in names))

    say("The run, all ranks live")
    client = MLClient()
    run = client.jobs.create_or_update(job, compute="local")
    try:
        client.jobs.stream(run.name)
    except KeyboardInterrupt:
        client.jobs.cancel(run.name)
        raise

    model = Path(run.outputs.model.path)
    folder = model.parent.parent
    log = (folder / "logs/node-0/rank-0.log").read_text()
    losses = re.findall(r"^epoch \S+ loss (\S+)", log, re.MULTILINE)
    (accuracy,) = re.findall(r"^accuracy (\S+)", log, re.MULTILINE)
    say(f"Loss {losses[0]} -> {losses[-1]} in {len(losses)} epochs, accuracy {float(accuracy):.1%} (chance: 10%)")
    print(f"model: {model / 'model.pt'}")
    print(f"logs:  {folder / 'logs'} (a file for each rank)")

    say("Next")
    jobsdk = os.path.relpath(Path(sys.executable).parent / "jobsdk")
    print(f"  {jobsdk} job show {run.name}")
    print(f"  {jobsdk} run --nodes 2 --processes 2 -- sh -c 'echo I am rank $RANK of $WORLD_SIZE'")
    print(f"  {jobsdk} ui")


if __name__ == "__main__":
    try:
        main()
    except JobsdkError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
