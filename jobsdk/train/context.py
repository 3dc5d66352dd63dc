"""Which process of a job this is, whatever launched it."""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple, Optional

from . import place


def is_url(place: str) -> bool:
    """Whether `place` is an address such as s3://bucket/prefix, and no folder."""
    return place.partition("://")[0].replace("+", "").isalnum() and "://" in place


class Storage(NamedTuple):
    """Where a run keeps what it reports, by Ray's names: a folder, and the run's own within it."""

    storage_fs_path: str
    experiment_dir_name: str

    @property
    def experiment_fs_path(self) -> str:
        return os.path.join(self.storage_fs_path, self.experiment_dir_name)


class Context(NamedTuple):
    """The place of this process in its job. Ranks count from 0. A single process is rank 0 of 1.

    `launcher` is the source of the values: "ray train", "torchrun" (also for accelerate, TorchDistributor and jobsdk),
    "open mpi", "hydra", "environment" (RANK and WORLD_SIZE), "slurm", "tensorflow" or "alone". `outputs` is the folder
    that is kept as ./outputs. Checkpoints go to `storage`. Values that the launcher does not know are None.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    restart_count: int
    run_name: Optional[str]
    experiment: Optional[str]
    run_dir: Optional[str]
    outputs: str
    storage: str
    launcher: str

    # -- by Ray Train's names ------------------------------------------------------------------------------------

    def get_world_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world_size

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_local_world_size(self) -> int:
        return self.local_world_size

    def get_node_rank(self) -> int:
        return self.node_rank

    def get_experiment_name(self) -> Optional[str]:
        return self.experiment or self.run_name

    def get_trial_name(self) -> Optional[str]:
        return self.run_name

    def get_trial_id(self) -> Optional[str]:
        return self.run_name

    def get_trial_dir(self) -> str:
        return self.storage

    def get_storage(self) -> Storage:
        return Storage(*os.path.split(self.storage))


def get_context() -> Context:
    """Return the place of this process in its job, from the present environment.

    Raises TrainError if a variable should be a number and is not.
    """
    return of(os.environ, place.of_ray_train())


def of(environment: Mapping[str, str], ray: Optional[place.OfRay] = None) -> Context:
    """The same of any environment; `ray` is what Ray Train says, if this is a worker of its. Pure but for the working
    directory."""
    found = ray.place if ray else place.of(environment)
    run_dir = environment.get("JOBSDK_RUN_DIR") or None
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    names = [environment.get("JOBSDK_RUN_NAME"), environment.get("AZUREML_RUN_ID"), ray.experiment if ray else None]
    run_name = next(filter(None, names), None) or (elastic if elastic != "none" else None)
    outputs = run_dir + "/outputs/default" if run_dir else os.path.abspath("outputs")
    storage = environment.get("JOBSDK_STORAGE_PATH")
    if storage and run_name:
        storage = os.path.join(storage, run_name)
    experiment = environment.get("MLFLOW_EXPERIMENT_NAME") or environment.get("AZUREML_ARM_PROJECT_NAME")
    return Context(
        found.rank,
        found.size,
        found.local_rank,
        found.local_size,
        found.node,
        found.nodes,
        _restarts(environment),
        run_name,
        ray.experiment if ray else experiment or None,
        run_dir,
        outputs,
        (storage if is_url(storage) else os.path.abspath(storage)) if storage else outputs,
        found.launcher,
    )


def _restarts(environment: Mapping[str, str]) -> int:
    """A job may be started again by who has started it, or by a launcher within."""
    names = ("JOBSDK_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    known = names[:2] if "JOBSDK_RUN_NAME" in environment else names
    return max(place.number(environment, name) or 0 for name in known)
