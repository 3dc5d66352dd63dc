"""Plans, explains and compiles one job of RANKS processes, eight on each node; writes the figures as JSON."""

import json
import sys
import time

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.planning.plan import make_plan


def seconds(work):
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


def explain_all(job):
    """Every process's environment, each looked at and let go."""
    return sum(len(process.environment) > 0 for process in job.explain())


ranks = int(sys.argv[1])
job = command(
    command="python train.py --epochs ${{inputs.epochs}}",
    code=".",
    inputs={"epochs": 10},
    distribution=PyTorchDistribution(process_count_per_instance=8),
    instance_count=ranks // 8,
)
client = MLClient()
make_plan(job, name="first")  # what is imported on first use is import_and_validate's subject
client.jobs.compile(job)
job.explain()[0]

planned, plan = seconds(lambda: make_plan(job, name="example"))
explained, count = seconds(lambda: explain_all(job))
compiled, spec = seconds(lambda: client.jobs.compile(job))
assert count == ranks, count
sizes = {"plan's size": len(json.dumps(plan)), "compiled job's size": len(json.dumps([plan, spec.spec]))}
print(json.dumps({"plan": planned, "explain": explained, "compile": compiled, **sizes}))
