"""Submits one job three times from a new process, as azure-ai-ml or as jobsdk: new, unchanged, with one file changed.

Arguments: which of the two, the project's folder. Writes JSON to stdout: seconds, and requests as the emulator counts
them, of each submission. The first begins with this process, at BENCHMARK_BEGAN of the monotonic clock.
"""

import json
import os
import sys
import time
from pathlib import Path

from jobsdk.emulator.process import read

which, project = sys.argv[1], Path(sys.argv[2])
running = read(Path(os.environ["BENCHMARK_EMULATOR"]))
assert running is not None
(project / "src/train.py").write_text(f"number = {time.time_ns()}\n")
(project / "data.csv").write_text(f"{time.time_ns()}\n")
names = [os.environ[name] for name in ("AZURE_SUBSCRIPTION_ID", "AZURE_RESOURCE_GROUP", "AZUREML_WORKSPACE_NAME")]

if which == "azure-ai-ml":
    from azure.ai.ml import Input, MLClient, PyTorchDistribution, command
    from azure.ai.ml.entities import Environment
    from azure.identity import DefaultAzureCredential

    client = MLClient(DefaultAzureCredential(), *names, show_progress=False, enable_telemetry=False)
else:
    from jobsdk import Environment, Input, MLClient, PyTorchDistribution, command

    client = MLClient(None, *names)


def describe():
    """The same for both; azure-ai-ml changes the job that it submits, so each submission has its own."""
    return command(
        code=str(project / "src"),
        command="true ${{inputs.data}}",
        inputs={"data": Input(type="uri_file", path=str(project / "data.csv"))},
        environment=Environment(image="ubuntu:24.04"),
        compute="gpu-cluster",
        distribution=PyTorchDistribution(process_count_per_instance=1),
        experiment_name="benchmark",
    )


def submit(began):
    """(seconds, requests) of one submission; its run has ended before the next."""
    run = client.jobs.create_or_update(describe())
    seconds = time.monotonic() - began
    # Uploads are counted from the store's own log, which is a moment late: the job's PUT is the last request.
    counted = -1
    while counted != (now := sum(one["method"] != "CONNECT" for one in running.requests())):
        counted = now
        time.sleep(0.3)
    while client.jobs.get(run.name).status not in ("Completed", "Failed", "Canceled"):
        time.sleep(0.1)
    return seconds, counted


began = float(os.environ["BENCHMARK_BEGAN"])
figures = {}
for name in ("new", "unchanged", "changed"):
    if name != "new":
        running.forget_requests()
        began = time.monotonic()
    if name == "changed":
        (project / "src/train.py").write_text(f"number = {time.time_ns()}\n")
    figures[f"{name} seconds"], figures[f"{name} requests"] = submit(began)
json.dump(figures, sys.stdout)
