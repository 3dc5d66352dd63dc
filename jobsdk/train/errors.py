"""What is raised here."""

from __future__ import annotations


class TrainError(RuntimeError):
    """What is wrong, where, and how to put it right."""
