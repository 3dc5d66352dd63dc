"""What the programs share: the network, how the images get to it, and what becomes of its weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from mnist import SIDE


def use_gpus_as_needed() -> None:
    """Take a GPU's memory as it is needed, not all at once. To be called before anything else of TensorFlow."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def network() -> tf.keras.Model:
    """A small convolutional network that gives one logit for each digit; the same weights in every process."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((SIDE, SIDE, 1)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def scaled(images: np.ndarray) -> np.ndarray:
    """Images as the network takes them: N x 28 x 28 x 1, from 0 to 1."""
    return (images.astype(np.float32) / 255)[..., np.newaxis]


def shared_out(
    images: np.ndarray, labels: np.ndarray, batch_size: int
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Gives each worker its share of the images: shuffled anew in every epoch, without end, in batches for a device."""

    def share(worker: tf.distribute.InputContext) -> tf.data.Dataset:
        own = slice(worker.input_pipeline_id, None, worker.num_input_pipelines)
        dataset = tf.data.Dataset.from_tensor_slices((scaled(images[own]), labels[own]))
        return dataset.shuffle(len(images), seed=0).batch(batch_size, drop_remainder=True).repeat()

    return share


def digest(model: tf.keras.Model) -> str:
    """Equal for equal weights."""
    weights = hashlib.sha256()
    for array in model.get_weights():
        weights.update(array.tobytes())
    return weights.hexdigest()[:16]


def save(model: tf.keras.Model, folder: Path) -> None:
    """Write the whole of `model.keras` or nothing. One process can do it alone."""
    # A copy without the strategy: to read some variables of the trained model, all workers must work together.
    copy = network()
    copy.set_weights(model.get_weights())
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.part.keras"
    copy.save(part)
    os.replace(part, folder / "model.keras")
