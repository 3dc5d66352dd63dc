"""Logs with MLflow as in a job on Azure ML: without start_run, and from every rank."""

import os
import sys
from pathlib import Path

import mlflow

rank = int(os.environ["RANK"])
for step in range(20):
    mlflow.log_metric("train/loss", rank + step / 100, step=step)
mlflow.log_metrics({f"rank_{rank}.seen": 20.0, "accuracy": 0.5})
mlflow.log_param("learning_rate", 0.1)
mlflow.log_params({"layers": 2, f"rank_{rank}": "here"})
mlflow.set_tag("team", "vision")
Path(f"notes-{rank}.txt").write_text("all is well\n")
mlflow.log_artifact(f"notes-{rank}.txt", "notes")
print("run", mlflow.active_run().info.run_id, flush=True)
sys.exit(int(os.environ.get("EXIT_CODE", "0")))
