"""Makes a small data set in MNIST's format that a small network can learn, for where the real one is absent.

    python make_data.py data/mnist

Digits of seven segments as on a calculator, of any size, place, slant and brightness, under noise. The real data set
(four files named as these, gzipped or not, or Keras' mnist.npz) may take its place.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import numpy as np

SIDE = 28
NOISE = 25.0  # standard deviation, of 255
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
#: The ends of each segment as (y, x), in a box two units high and one wide.
SEGMENTS = {
    "a": ((0, 0), (0, 1)), "b": ((0, 1), (1, 1)), "c": ((1, 1), (2, 1)), "d": ((2, 0), (2, 1)),
    "e": ((1, 0), (2, 0)), "f": ((0, 0), (1, 0)), "g": ((1, 0), (1, 1)),
}  # fmt: skip
DIGITS = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"]


def draw(digit: int, random: np.random.Generator) -> np.ndarray:
    """One image, 28 x 28, float."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    unit, thickness, slant = random.uniform(7, 10), random.uniform(1.0, 1.8), random.uniform(-0.25, 0.25)
    middle_y, middle_x = random.uniform(12, 16, size=2)
    image = np.zeros((SIDE, SIDE), bool)
    for segment in DIGITS[digit]:
        (y1, x1), (y2, x2) = (
            (middle_y + unit * (end[0] - 1), middle_x + unit * (end[1] - 0.5 - slant * (end[0] - 1)))
            for end in SEGMENTS[segment]
        )
        # How far along the segment each pixel's nearest point of it is, from 0 to 1.
        along = ((y - y1) * (y2 - y1) + (x - x1) * (x2 - x1)) / ((y2 - y1) ** 2 + (x2 - x1) ** 2)
        along = along.clip(0, 1)
        image |= np.hypot(y - y1 - along * (y2 - y1), x - x1 - along * (x2 - x1)) < thickness
    return image * random.uniform(150, 255) + random.normal(0, NOISE, size=image.shape)


def make(folder: Path, training_images: int = 3000, test_images: int = 500, seed: int = 0) -> None:
    """Write the four files, or none. The same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    random = np.random.default_rng(seed)
    for part, count in (("train", training_images), ("t10k", test_images)):
        labels = random.permutation(np.arange(count) % 10).astype(np.uint8)
        images = np.stack([draw(int(label), random) for label in labels]).clip(0, 255).astype(np.uint8)
        for what, values in (("images", images), ("labels", labels)):
            header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
            written[f"{part}-{what}-idx{values.ndim}-ubyte"] = header + values.tobytes()
    for name, content in written.items():
        (folder / f"{name}.part").write_bytes(content)
    for name in written:
        (folder / f"{name}.part").rename(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small learnable data set in MNIST's format.")
    parser.add_argument("folder", type=Path, help="where to write, e.g. data/mnist")
    parser.add_argument("--training-images", type=int, default=3000)
    parser.add_argument("--test-images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in (*FILES, *(f"{name}.gz" for name in FILES), "mnist.npz"):
        if (arguments.folder / name).exists():
            raise SystemExit(f"{arguments.folder} already holds {name}; it stays as it is; to make it anew, delete it")
    make(arguments.folder, arguments.training_images, arguments.test_images, arguments.seed)


if __name__ == "__main__":
    main()
