"""Trains a small network on MNIST with TensorFlow's ParameterServerStrategy: a chief, workers and parameter servers.

Each process finds its role in TF_CONFIG. The parameter servers hold the weights. The chief hands out batches; whichever
worker is free takes the next one and changes the weights by what it has learned, without waiting for the others.
Workers and parameter servers serve without end: jobsdk ends them when the chief has ended.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from mnist import load
from net import network, save, scaled, use_gpus_as_needed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on MNIST with parameter servers.")
    parser.add_argument("--data-dir", required=True, help="the folder with the IDX files or mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="images for each step of a worker")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--model-dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()

    use_gpus_as_needed()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in ("worker", "ps"):
        print(f"{cluster.task_type} {cluster.task_id} serves", flush=True)
        tf.distribute.Server(cluster.cluster_spec(), cluster.task_type, cluster.task_id, protocol="grpc").join()
    train(tf.distribute.ParameterServerStrategy(cluster), args)


def train(strategy: tf.distribute.ParameterServerStrategy, args: argparse.Namespace) -> None:
    """What the chief does."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    images, labels = load(args.data_dir, train=True)
    with strategy.scope():
        model = network()

    def everything() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((scaled(images), labels)).repeat()

    # Every worker has all images; a step is told which of them to take.
    data = iter(coordinator.create_per_worker_dataset(everything))

    @tf.function
    def step(data: tf.data.Iterator, chosen: tf.Tensor) -> tf.Tensor:
        images, labels = (tf.gather(whole, chosen) for whole in next(data))
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
            weight.assign_sub(args.learning_rate * gradient)
        return loss

    random = np.random.default_rng(0)
    for epoch in range(1, args.epochs + 1):
        started = time.monotonic()
        order = random.permutation(len(images))
        batches = np.array_split(order, max(1, len(order) // args.batch_size))
        losses = [coordinator.schedule(step, (data, tf.constant(batch))) for batch in batches]
        coordinator.join()
        mean = np.mean([loss.fetch() for loss in losses])
        print(f"epoch {epoch}/{args.epochs} loss {mean:.4f} ({time.monotonic() - started:.1f} s)", flush=True)

    # Keras 3 wraps TensorFlow's variables, Keras 2 has them as they are.
    variables = [weight if isinstance(weight, tf.Variable) else weight.value for weight in model.weights]
    print(f"the weights are on {', '.join(sorted({variable.device for variable in variables}))}", flush=True)
    images, labels = load(args.data_dir, train=False)
    right = np.argmax(model(scaled(images)), axis=1) == labels
    save(model, args.model_dir)
    print(f"accuracy {right.mean():.4f} on {len(images)} test images", flush=True)


if __name__ == "__main__":
    main()
