"""Submits the MPI fit from Python: the job of job_specs/mpi-fit.yml, written in code.

python src_examples/submit_mpi.py
"""

from __future__ import annotations

from pathlib import Path

from jobsdk import MLClient, MpiDistribution, Output, command

REPOSITORY = Path(__file__).resolve().parent.parent

job = command(
    display_name="mpi-fit",
    experiment_name="mpi",
    code=REPOSITORY / "src_examples/mpi",
    command="python -m mpi4py fit.py --samples ${{inputs.samples}} --epochs ${{inputs.epochs}}"
    " --learning-rate ${{inputs.learning_rate}} --model-dir ${{outputs.model}}",
    inputs={"samples": 5000, "epochs": 20, "learning_rate": 1.0},
    outputs={"model": Output(type="uri_folder")},
    distribution=MpiDistribution(process_count_per_instance=2),
    instance_count=2,
)

if __name__ == "__main__":
    client = MLClient()
    run = client.jobs.create_or_update(job)
    client.jobs.stream(run.name)
    print(f"the model is in {run.outputs.model.path}")
