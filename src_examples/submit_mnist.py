"""Submits the MNIST training from Python: the job of job_specs/mnist-tensorflow.yml, written in code.

python src_examples/mnist_tensorflow/make_data.py data/mnist
python src_examples/submit_mnist.py
"""

from __future__ import annotations

from pathlib import Path

from jobsdk import Input, MLClient, Output, TensorFlowDistribution, command

REPOSITORY = Path(__file__).resolve().parent.parent

job = command(
    display_name="mnist-tensorflow",
    experiment_name="mnist",
    code=REPOSITORY / "src_examples/mnist_tensorflow",
    command="python train.py --data-dir ${{inputs.mnist}} --epochs ${{inputs.epochs}}"
    " --learning-rate ${{inputs.learning_rate}} --model-dir ${{outputs.model}}",
    inputs={
        "mnist": Input(type="uri_folder", path=REPOSITORY / "data/mnist"),
        "epochs": 5,
        "learning_rate": 0.002,
    },
    outputs={"model": Output(type="uri_folder")},
    environment_variables={"TF_CPP_MIN_LOG_LEVEL": "2"},
    distribution=TensorFlowDistribution(),
    instance_count=2,
)

if __name__ == "__main__":
    client = MLClient()
    run = client.jobs.create_or_update(job)
    client.jobs.stream(run.name)
    print(f"the model is in {run.outputs.model.path}")
