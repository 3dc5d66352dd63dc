"""What the parts of the coordinator act on. Import it for annotations only (`if TYPE_CHECKING`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional, Protocol

if TYPE_CHECKING:
    from ..hangs.query import Answer, Inquiries
    from ..launchers import Assembly
    from ..spec.messages import Start
    from ..spec.report import RankEnd
    from .attempt import Attempt
    from .gathering import Gathering
    from .members import Members
    from .shells import Shells
    from .uploads import Uploads


class Job(Protocol):
    """The job as a whole, as the coordinator has it."""

    attempt: Attempt
    members: Members
    gathering: Gathering
    inquiries: Inquiries
    shells: Optional[Shells]
    assembly: Optional[Assembly]
    uploads: Uploads
    told: Start
    is_gathering: bool
    is_running: bool

    def fail(self, failure: RankEnd) -> None: ...
    def stop(self, reason: str) -> None: ...
    def tell_to_stop(self) -> None: ...
    def node_is_quiet(self, node: int) -> None: ...
    def take_stacks(self, done: Callable[[Answer], None]) -> None: ...
    def cancel(self) -> None: ...
