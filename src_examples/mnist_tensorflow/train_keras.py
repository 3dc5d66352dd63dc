"""Trains the same network with `model.fit` under TensorFlow's MultiWorkerMirroredStrategy. It needs Keras 2.

Under Keras 3 `fit` fails with this strategy (https://github.com/keras-team/keras/issues/20585). Keras 2 is the package
tf_keras, which takes the place of tf.keras where TF_USE_LEGACY_KERAS=1 is set before TensorFlow is imported: the job
sets it. train.py shows what works with either.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tensorflow as tf
from mnist import load
from net import digest, network, save, scaled, shared_out, use_gpus_as_needed


class Progress(tf.keras.callbacks.Callback):
    """Prints each epoch's mean loss over all workers."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        print(f"epoch {epoch + 1}/{self.epochs} loss {(logs or {})['loss']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on MNIST with Keras 2.")
    parser.add_argument("--data-dir", required=True, help="the folder with the IDX files or mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="images for each device and step")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--model-dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()

    use_gpus_as_needed()
    # Before anything else of TensorFlow: it connects the workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id or 0
    replicas = strategy.num_replicas_in_sync

    images, labels = load(args.data_dir, train=True)
    steps = len(images) // (args.batch_size * replicas)
    if not steps:
        raise SystemExit(f"{len(images)} images are no batch of {args.batch_size} for each of {replicas} devices")
    training = strategy.distribute_datasets_from_function(shared_out(images, labels, args.batch_size))
    with strategy.scope():
        model = network()
        model.compile(
            optimizer=tf.keras.optimizers.Adam(args.learning_rate),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    callbacks = [Progress(args.epochs)] if worker == 0 else []
    model.fit(training, epochs=args.epochs, steps_per_epoch=steps, callbacks=callbacks, verbose=0)

    images, labels = load(args.data_dir, train=False)
    test = tf.data.Dataset.from_tensor_slices((scaled(images), labels)).batch(256 * replicas)
    _, accuracy = model.evaluate(strategy.experimental_distribute_dataset(test), steps=len(test), verbose=0)
    print(f"worker {worker} weights {digest(model)}", flush=True)
    if worker == 0:
        save(model, args.model_dir)
        print(f"accuracy {accuracy:.4f} on {len(images)} test images", flush=True)


if __name__ == "__main__":
    main()
