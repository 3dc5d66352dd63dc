"""What node 0 knows of one start of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Set

from ..spec.ranks import ProcessLocation

if TYPE_CHECKING:
    from ..spec.report import RankEnd


class Attempt:
    """What has happened since the nodes were last told to start."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.quiet: Set[int] = set()  # nodes with nothing left running, and nodes that are gone
        self.ends: Dict[int, RankEnd] = {}  # the end of each rank
        self.places: Dict[int, ProcessLocation] = {}  # where each rank runs
        self.failures: List[RankEnd] = []
        self.matched: Set[str] = set()  # the rules' patterns that were found in outputs of failed ranks
        self.idle: Dict[int, float] = {}  # nodes that have long seen nothing done, and until when that is believed
        self.reason: Optional[str] = None  # why all are being stopped
        self.stopped_at = 0.0
        self.told_to_stop = False  # node 0, before the others
        self.leaving: Set[int] = set()  # nodes that were told to go
        self.shells: Dict[int, int] = {}  # how many commands a node was told to start by the remote shell

    def living(self) -> Dict[int, ProcessLocation]:
        """Where the ranks run that have not ended."""
        return {rank: place for rank, place in self.places.items() if rank not in self.ends}
