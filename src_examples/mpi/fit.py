"""Fits a logistic regression on data that is spread over MPI processes: gradients are averaged with Allreduce.

Every process makes its own share of the samples, so that none is sent anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array = NDArray[np.float64]


def samples(count: int, features: int, seed: int) -> tuple[Array, Array]:
    """Points, and on which side of one plane (the same for every seed) each lies, with some noise."""
    plane = np.random.default_rng(0).normal(size=features)
    random = np.random.default_rng(seed)
    points = random.normal(size=(count, features))
    return points, (points @ plane + random.normal(scale=0.5, size=count) > 0).astype(np.float64)


def loss_and_gradient(weights: Array, points: Array, labels: Array) -> tuple[float, Array]:
    scores = points @ weights
    loss = np.mean(np.logaddexp(0.0, scores) - labels * scores)
    right = 1.0 / (1.0 + np.exp(-scores))
    return float(loss), points.T @ (right - labels) / len(labels)


def mean(values: Array) -> Array:
    """The mean of `values` over all processes, the same bits in each."""
    total = np.empty_like(values)
    MPI.COMM_WORLD.Allreduce(values, total)
    return total / MPI.COMM_WORLD.size


def save(result: dict[str, object], path: Path) -> None:
    """Write the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result) + "\n")
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a logistic regression with MPI.")
    parser.add_argument("--samples", type=int, default=5000, help="for each process")
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--model-dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()

    world = MPI.COMM_WORLD
    print(f"rank {world.rank} of {world.size}", flush=True)
    points, labels = samples(args.samples, args.features, seed=1 + world.rank)
    weights = np.zeros(args.features)
    for epoch in range(1, args.epochs + 1):
        loss, gradient = loss_and_gradient(weights, points, labels)
        average = mean(np.append(gradient, loss))
        weights -= args.learning_rate * average[:-1]
        if world.rank == 0:
            print(f"epoch {epoch}/{args.epochs} loss {average[-1]:.4f}", flush=True)

    print(f"rank {world.rank} weights {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}", flush=True)
    accuracy = float(mean(np.array([np.mean((points @ weights > 0) == labels)]))[0])
    if world.rank == 0:
        result = {"weights": weights.tolist(), "accuracy": accuracy, "processes": world.size}
        save(result, args.model_dir / "model.json")
        print(f"accuracy {accuracy:.4f} on {world.size * args.samples} samples", flush=True)


if __name__ == "__main__":
    main()
