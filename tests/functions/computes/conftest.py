"""Every test has a working directory of its own, as those of the computes."""

from tests.compute.conftest import work

__all__ = ["work"]
