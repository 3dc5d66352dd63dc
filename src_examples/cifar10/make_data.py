"""Makes a small data set in CIFAR-10's format that a small network can learn, for where the real one is absent.

    python make_data.py data/cifar-10-batches-py

Each of the ten classes is one of five shapes in warm or in cold colours, of any size and place, under noise. The real
data set (https://www.cs.toronto.edu/~kriz/cifar.html) may take its place: the files have the same names and format.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path

import numpy as np

LABELS = [
    f"{colour} {shape}" for colour in ("warm", "cold") for shape in ("disc", "square", "cross", "rows", "columns")
]
NOISE = 30.0  # standard deviation, of 255


def draw(label: int, random: np.random.Generator) -> np.ndarray:
    """One image, 3 x 32 x 32, float."""
    y, x = np.mgrid[0:32, 0:32]
    radius = random.uniform(6, 11)
    dy, dx = (np.abs(axis - random.uniform(11, 21)) for axis in (y, x))
    inside = (dy < radius) & (dx < radius)
    shape = label % 5
    if shape == 0:
        inside = dy**2 + dx**2 < radius**2
    elif shape == 2:
        inside &= (dy < radius / 3) | (dx < radius / 3)
    elif shape == 3:
        inside &= y // 3 % 2 == 0
    elif shape == 4:
        inside &= x // 3 % 2 == 0
    strong, weak = random.uniform(140, 230), random.uniform(30, 110)
    colour = [strong, random.uniform(60, 160), weak]  # warm: more red than blue
    background = random.uniform(40, 200, size=3)
    image = np.where(inside, np.reshape(colour if label < 5 else colour[::-1], (3, 1, 1)), background[:, None, None])
    return image + random.normal(0, NOISE, size=image.shape)


def make(folder: Path, images_per_batch: int = 400, seed: int = 0) -> None:
    """Write the five training batches, the test batch and `batches.meta`. The same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = [int(label) for label in random.permutation(np.arange(images_per_batch) % 10)]
        images = np.stack([draw(label, random) for label in labels]).clip(0, 255).astype(np.uint8)
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels,
            b"data": images.reshape(images_per_batch, 3072),
            b"filenames": [b"%s_%d.png" % (name.encode(), number) for number in range(images_per_batch)],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=4))
    meta = {
        b"num_cases_per_batch": images_per_batch,
        b"label_names": [label.encode() for label in LABELS],
        b"num_vis": 3072,
    }
    # Last: a folder that has it is complete.
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=4))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small learnable data set in CIFAR-10's format.")
    parser.add_argument("folder", type=Path, help="where to write, e.g. data/cifar-10-batches-py")
    parser.add_argument("--images-per-batch", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if (arguments.folder / "batches.meta").exists():
        raise SystemExit(f"{arguments.folder} already holds a data set; it stays as it is")
    make(arguments.folder, arguments.images_per_batch, arguments.seed)


if __name__ == "__main__":
    main()
