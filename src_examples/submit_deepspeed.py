"""Submits a DeepSpeed training from Python, with DeepSpeed's configuration written in the job.

python src_examples/submit_deepspeed.py
"""

from __future__ import annotations

from pathlib import Path

from jobsdk import DeepSpeedDistribution, MLClient, Output, command

REPOSITORY = Path(__file__).resolve().parent.parent

job = command(
    display_name="deepspeed-zero3",
    experiment_name="deepspeed",
    code=REPOSITORY / "src_examples/deepspeed",
    # Every process finds there the file that the configuration below was written to.
    command="python train.py --deepspeed --deepspeed_config $JOBSDK_DEEPSPEED_CONFIG"
    " --epochs ${{inputs.epochs}} --checkpoint-dir ${{outputs.checkpoint}}",
    inputs={"epochs": 5},
    outputs={"checkpoint": Output(type="uri_folder")},
    environment_variables={"DS_ACCELERATOR": "cpu"},
    distribution=DeepSpeedDistribution(
        process_count_per_instance=2,
        config={
            "train_batch_size": 64,  # 16 points for each of the 4 processes; jobsdk checks that it comes out even
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "torch_adam": True}},
            "zero_optimization": {"stage": 3},
        },
    ),
    instance_count=2,
)

if __name__ == "__main__":
    client = MLClient()
    run = client.jobs.create_or_update(job)
    client.jobs.stream(run.name)
    print(f"the checkpoint is in {run.outputs.checkpoint.path}")
