"""What the bootstrap and the program that copies files from and to object stores (`transport.store`) say to each other.

Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class Mark(TypedDict, total=False):
    """The content of the last file of an upload: who finds it finds all others."""

    run: str
    node: int
    #: the size of each file
    files: Dict[str, int]


class Request(TypedDict, total=False):
    """What `transport.store` is to do."""

    #: `fetch` or `upload`
    operation: str
    url: str
    #: a folder or file of this node
    path: str
    #: whether the URL leads to one file
    is_file: bool
    #: upload: the file that keeps what was uploaded before
    state: str
    #: upload: the folders in `path` that are uploaded; without any, all
    below: List[str]
    #: upload: what is written last
    mark: Optional[Mark]


class Moved(TypedDict, total=False):
    """What was copied."""

    files: int
    bytes: int
    seconds: float


class Said(TypedDict, total=False):
    """What `transport.store` says: `bytes` so far; at last `done` or `error`."""

    bytes: int
    done: Moved
    error: str
