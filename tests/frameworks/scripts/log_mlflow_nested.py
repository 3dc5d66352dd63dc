"""Starts its runs itself, as a script does that tries several settings."""

import mlflow

with mlflow.start_run(run_name="search", description="two rates") as search:
    for rate in (0.1, 0.2):
        with mlflow.start_run(run_name=f"rate {rate}", nested=True):
            mlflow.log_param("rate", rate)
            mlflow.log_metric("score", 1 - rate)
    mlflow.log_metric("best", 0.9)
print("searched in", search.info.run_id)
with mlflow.start_run(run_name="afterwards"):
    mlflow.log_metric("extra", 1)
