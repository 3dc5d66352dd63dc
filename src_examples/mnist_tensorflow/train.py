"""Trains a small network on MNIST with TensorFlow's MultiWorkerMirroredStrategy and a training loop of its own.

Each worker finds in TF_CONFIG who it is and where the others are. It reads its own share of the images; gradients are
added up over all workers at every step, so that the weights stay the same everywhere.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import tensorflow as tf
from mnist import load
from net import digest, network, save, scaled, shared_out, use_gpus_as_needed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on MNIST.")
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
    print(f"worker {worker} trains on {len(strategy.extended.worker_devices)} of {replicas} devices", flush=True)

    images, labels = load(args.data_dir, train=True)
    steps = len(images) // (args.batch_size * replicas)
    if not steps:
        raise SystemExit(f"{len(images)} images are no batch of {args.batch_size} for each of {replicas} devices")
    training = iter(strategy.distribute_datasets_from_function(shared_out(images, labels, args.batch_size)))
    with strategy.scope():
        model = network()
        optimizer = tf.keras.optimizers.Adam(args.learning_rate)
        optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """One step of all workers together; their mean loss."""

        def on_each_device(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
                # The device's part of the mean over all devices. A loss of Keras 3 would divide by `replicas` itself.
                loss = tf.reduce_mean(losses) / replicas
            gradients = tape.gradient(loss, model.trainable_variables)
            # Adds up the gradients of all devices (all_reduce) before it applies them.
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(on_each_device, batch), axis=None)

    @tf.function
    def right_ones(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """How many images of a batch all workers together see right, and how many there are."""

        def on_each_device(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            right = tf.equal(tf.argmax(model(images), axis=1), labels)
            return tf.stack([tf.math.count_nonzero(right), tf.size(right, tf.int64)])

        return strategy.reduce("SUM", strategy.run(on_each_device, batch), axis=None)

    for epoch in range(1, args.epochs + 1):
        started = time.monotonic()
        mean = sum(train_step(next(training)) for _ in range(steps)) / steps
        if worker == 0:
            seconds = time.monotonic() - started
            print(f"epoch {epoch}/{args.epochs} loss {float(mean):.4f} ({seconds:.1f} s)", flush=True)

    images, labels = load(args.data_dir, train=False)
    test = tf.data.Dataset.from_tensor_slices((scaled(images), labels)).batch(256 * replicas)
    right, all_of_them = sum(right_ones(batch) for batch in strategy.experimental_distribute_dataset(test)).numpy()
    print(f"worker {worker} weights {digest(model)}", flush=True)
    if worker == 0:
        save(model, args.model_dir)
        print(f"accuracy {right / all_of_them:.4f} on {all_of_them} test images", flush=True)


if __name__ == "__main__":
    main()
