"""What node 0 knows of one start of the job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Dict, List, Optional, Set, cast

from ..spec.ranks import ProcessLocation

if TYPE_CHECKING:
    from ..spec.report import RankEnd


class Attempt:
    """What has happened since the nodes last got the order to start."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.quiet: Set[int] = set()  # nodes with nothing left running, and nodes that are gone
        self.ends: Dict[int, RankEnd] = {}  # the end of each rank
        self.places: Dict[int, ProcessLocation] = {}  # where each rank runs
        self.failures: List[RankEnd] = []
        self.matched: Set[str] = set()  # the rules' patterns that were found in outputs of failed ranks
        self.idle: Dict[int, float] = {}  # nodes that have long seen nothing done, and until when that is believed
        self.stands_still = False  # a warning has said so
        self.reason: Optional[str] = None  # why all are being stopped
        self.stopped_at = 0.0
        self.told_to_stop = False  # node 0, before the others
        self.leaving: Set[int] = set()  # nodes that were told to go

    @property
    def goes_on(self) -> bool:
        """Whether nothing speaks against its going on."""
        return self.reason is None and not self.failures

    def note_end(self, end: RankEnd) -> RankEnd:
        """Keep how a rank ended; returns that, with what is known here."""
        if self.reason is not None and end["signal"] in (signal.SIGTERM, signal.SIGKILL):
            end["stopped"] = True  # by us, or by a launcher that we stopped
        if "failed_before" in end:  # it had failed already when it was told to end
            end = cast("RankEnd", {**end, "t": end["failed_before"], "exit_code": 1, "signal": None, "stopped": False})
        rank = end["rank"]
        assert rank is not None
        self.ends[rank] = end
        return end

    def step(self) -> Optional[int]:
        """The latest step that a rank reported, -1 without one; None if no rank said so."""
        return max((end["step"] for end in self.ends.values() if "step" in end), default=None)

    def lone_library(self) -> str:
        """The library in which every rank saw a world of one process; empty if there is none, or only one rank."""
        found = {end.get("world_of_one", "") for end in self.ends.values()} if len(self.ends) > 1 else set()
        return found.pop() if len(found) == 1 else ""

    def living(self) -> Dict[int, ProcessLocation]:
        """Where the ranks run that have not ended."""
        return {rank: place for rank, place in self.places.items() if rank not in self.ends}
