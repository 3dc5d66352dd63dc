"""Submits the CIFAR-10 training from Python: the job of job_specs/cifar10-pytorch.yml, written in code.

python src_examples/cifar10/make_data.py data/cifar-10-batches-py
python src_examples/submit_cifar10.py
"""

from __future__ import annotations

from pathlib import Path

from jobsdk import Input, MLClient, Output, PyTorchDistribution, command

REPOSITORY = Path(__file__).resolve().parent.parent

job = command(
    display_name="cifar10-pytorch",
    experiment_name="cifar10",
    code=REPOSITORY / "src_examples/cifar10",
    command="python train.py --data-dir ${{inputs.cifar}} --epochs ${{inputs.epochs}}"
    " --learning-rate ${{inputs.learning_rate}} --device ${{inputs.device}} --model-dir ${{outputs.model}}",
    inputs={
        "cifar": Input(type="uri_folder", path=REPOSITORY / "data/cifar-10-batches-py"),
        "epochs": 10,
        "learning_rate": 0.003,
        "device": "cpu",
    },
    outputs={"model": Output(type="uri_folder")},
    distribution=PyTorchDistribution(process_count_per_instance=2),
    instance_count=2,
)

if __name__ == "__main__":
    client = MLClient()
    run = client.jobs.create_or_update(job)
    client.jobs.stream(run.name)
    print(f"the model is in {run.outputs.model.path}")
