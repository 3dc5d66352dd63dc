"""The table: each fault with the card that must come of it.

    python -m tests.chaos --rounds 3 --seed 1

runs it with random delays. To add a fault, add a row where its kind is: of a rank, a node, or a framework.
"""

from tests.chaos.of_frameworks import FRAMEWORKS
from tests.chaos.of_nodes import NODES
from tests.chaos.of_ranks import RANKS

FAULTS = [*RANKS, *NODES, *FRAMEWORKS]
