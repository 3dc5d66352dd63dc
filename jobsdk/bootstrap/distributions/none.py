"""A job without a distribution: every node runs the command once."""

from __future__ import annotations

from .base import Distribution


class NoDistribution(Distribution):
    kind = "none"
    communicates = False
