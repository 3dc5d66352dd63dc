"""Node 0's part in uploads: the job ends when every node's outputs are in their object stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional, Set

from ..spec import stores
from . import blame
from .attempt import Attempt
from .journal import Journal
from .members import Members

if TYPE_CHECKING:
    from ..spec.messages import Uploaded
    from ..spec.plan import Plan


class Uploads:
    """`done` is called when no node uploads any more."""

    def __init__(self, plan: Plan, members: Members, journal: Journal, done: Callable[[], None]) -> None:
        self._is_wanted = any(stores.is_moved(one) for one in plan["outputs"].values())
        self._members = members
        self._journal = journal
        self._done = done
        self._of: Optional[Attempt] = None  # the attempt whose outputs are being uploaded, or have been
        self._waiting: Set[int] = set()

    def are_done(self, now: Attempt) -> bool:
        """Whether all nodes have uploaded what the attempt has written. The first question makes them do it."""
        if self._is_wanted and self._of is not now:
            self._of, self._waiting = now, set(self._members.present)
            self._members.tell(None, {"type": "upload"})
        for node in sorted(self._waiting.difference(self._members.present)):
            self._waiting.discard(node)
            self._failed(node, "node %d was lost before its outputs were uploaded" % node)
        return not self._waiting

    def heard(self, node: int, message: Uploaded) -> None:
        """A node has uploaded something, or says why it could not."""
        error = message.get("error", "")
        if "name" in message and not error:
            self._journal.uploaded(node, message)
        elif "checkpoint" in message:
            self._journal.warning(error, node)
        elif error:
            self._failed(node, "node %d: %s" % (node, error))
        if message.get("last"):
            self._waiting.discard(node)
            self._done()

    def give_up(self) -> None:
        """The job is cancelled: end it with what is uploaded."""
        if self._waiting and self._of is not None:
            if self._of.reason == "complete":
                self._of.reason = "cancelled"
            self._journal.warning("cancelled before all outputs were uploaded")
            self._waiting.clear()
            self._done()

    def _failed(self, node: int, text: str) -> None:
        """A job whose ranks have all succeeded fails by this; of another one it is not the cause."""
        now = self._of
        if now is not None and now.reason in (None, "complete") and not now.failures:
            now.reason = "failure"
            now.failures.append(blame.unreported("upload_failed", text, node, exit_code=1, final=True))
        else:
            self._journal.warning(text, node)
