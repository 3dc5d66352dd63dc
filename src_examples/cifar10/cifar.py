"""Reads CIFAR-10 in its own format, the folder `cifar-10-batches-py` (https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

TRAINING = [f"data_batch_{number}" for number in range(1, 6)]
TEST = ["test_batch"]

# All that a batch needs. A pickle may name any function to call; a data set has no business naming others.
_ALLOWED = {
    "_reconstruct": np.empty(0).__reduce__()[0],
    "ndarray": np.ndarray,
    "dtype": np.dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _ALLOWED:
            return _ALLOWED[name]
        raise pickle.UnpicklingError(f"not a CIFAR-10 batch: it asks for {module}.{name}")


def load(folder: str | Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images (N x 3 x 32 x 32, uint8) and labels (N, int64) of the training batches or of the test batch.

    `folder` is `cifar-10-batches-py` or the folder that holds it. Raises FileNotFoundError if a batch is missing.
    """
    images, labels = [], []
    for name in TRAINING if train else TEST:
        batch = _read(folder, name)
        images.append(np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32))
        labels.append(np.asarray(batch[b"labels"], dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels)


def label_names(folder: str | Path) -> list[str]:
    """The names of the ten labels, in their order."""
    return [name.decode() for name in _read(folder, "batches.meta")[b"label_names"]]


def _read(folder: str | Path, name: str) -> dict[bytes, Any]:
    folder = Path(folder)
    if (folder / "cifar-10-batches-py").is_dir():
        folder = folder / "cifar-10-batches-py"
    with open(folder / name, "rb") as file:
        # The published files were written by Python 2; with "bytes" their keys read b"data", b"labels".
        content: dict[bytes, Any] = _Unpickler(file, encoding="bytes").load()
    return content
