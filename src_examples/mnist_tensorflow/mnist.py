"""Reads MNIST as it is published: the four IDX files, gzipped or not, or `mnist.npz` as Keras ships it.

IDX is a magic number, the size of each dimension, then the bytes; all numbers are big-endian 32-bit integers.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

SIDE = 28  # pixels
TRAINING, TEST = "train", "t10k"


def load(folder: str | Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images (N x 28 x 28, uint8) and labels (N, int64) of the training or the test set.

    `folder` holds the IDX files or mnist.npz; it may also be the path of the .npz file itself. Raises
    FileNotFoundError if there is neither, ValueError for a file that is damaged or of another format.
    """
    folder = Path(folder)
    archive = folder if folder.suffix == ".npz" else folder / "mnist.npz"
    if archive.is_file():
        images, labels = _from_npz(archive, "train" if train else "test")
    else:
        images, labels = (_from_idx(folder, TRAINING if train else TEST, what) for what in ("images", "labels"))
    if len(images) != len(labels) or not len(images):
        raise ValueError(f"{folder}: {len(images)} images and {len(labels)} labels do not belong together")
    if labels.max() > 9:
        raise ValueError(f"{folder}: the label {labels.max()} is no digit")
    return images, labels.astype(np.int64)


def _from_npz(archive: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """The arrays x_PART and y_PART. No pickle: a data set has no business running code."""
    try:
        with np.load(archive, allow_pickle=False) as content:
            images, labels = content[f"x_{part}"], content[f"y_{part}"]
    except (KeyError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{archive} is not MNIST as Keras ships it: {error}") from error
    if images.dtype != np.uint8 or labels.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE) or labels.ndim != 1:
        raise ValueError(
            f"{archive} is not MNIST as Keras ships it: x_{part} is {images.dtype} of shape {images.shape}"
            f", y_{part} is {labels.dtype} of shape {labels.shape}"
        )
    return images, labels


def _from_idx(folder: Path, part: str, what: str) -> np.ndarray:
    dimensions = 3 if what == "images" else 1
    name = f"{part}-{what}-idx{dimensions}-ubyte"
    # The published names, as some archives spell them, each also gzipped.
    names = [name + end for name in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} holds neither {name} (or {name}.gz) nor mnist.npz")
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file: {error}") from error
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{path} has {len(content)} bytes, less than the header of an IDX file")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:start])
    expected = 0x0800 + dimensions  # 8 stands for unsigned bytes
    if magic != expected:
        raise ValueError(f"{path} begins with the magic number {magic:#010x}, not {expected:#010x}")
    if shape[1:] not in ([], [SIDE, SIDE]):
        raise ValueError(f"{path} holds images of {shape[1]} x {shape[2]} pixels, not {SIDE} x {SIDE}")
    if len(content) - start != math.prod(shape):
        raise ValueError(f"{path} has {len(content) - start} bytes of data, not the {math.prod(shape)} that it names")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
