"""Prints what the scripts azure_*.py read of their environment, each process one line of JSON; imports no framework."""

import json
import os
import sys
from pathlib import Path

OF_A_PROCESS = (
    "AZUREML_RUN_ID AZUREML_NODE_COUNT AZUREML_CR_NODE_RANK AZUREML_PROCESS_NAME AZ_BATCH_HOST_LIST "
    "AZ_BATCH_MASTER_NODE AZ_BATCHAI_MPI_MASTER_NODE AZ_BATCH_IS_CURRENT_NODE_MASTER "
    "RANK WORLD_SIZE LOCAL_RANK NODE_RANK MASTER_ADDR MASTER_PORT TF_CONFIG "
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"
).split()
found = {name: os.environ[name] for name in OF_A_PROCESS if name in os.environ}
found["argv"] = sys.argv[1:]
data = {kind: os.environ.get(f"AZURE_ML_{kind}") for kind in ("INPUT_images", "OUTPUT_model")}
if data["INPUT_images"]:
    found["seed"] = Path(data["INPUT_images"], "seed.txt").read_text()
    found["input is the argument"] = Path(data["INPUT_images"]).samefile(sys.argv[2])
if os.environ.get("RANK") == "0" and data["OUTPUT_model"]:
    Path(data["OUTPUT_model"], "model.pt").write_text("weights")
    os.makedirs("outputs", exist_ok=True)
    Path("outputs", "run_id.txt").write_text(os.environ["AZUREML_RUN_ID"])
os.write(1, (json.dumps(found) + "\n").encode())  # in one piece
