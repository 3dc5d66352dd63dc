"""What makes all pods of a job start together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Fields = Mapping[str, Any]
_NONE: Fields = MappingProxyType({})


class Group(NamedTuple):
    """What a scheduler needs to start all pods of a job together. All is empty unless it needs it."""

    scheduler: str = ""
    version: str = ""  # of the object that describes the group
    kind: str = ""
    spec: Fields = _NONE
    labels: Fields = _NONE  # of the Job and its pods
    pod_labels: Fields = _NONE
    pod_annotations: Fields = _NONE
    job_annotations: Fields = _NONE
    pod_fields: Fields = _NONE


class Gang(NamedTuple):
    """A scheduler: how it groups the pods of a job (by its name, its number of nodes and the settings)."""

    group: Callable[[str, int, Mapping[str, Any]], Group]
    settings: tuple[str, ...] = ()  # those that only some gangs know
    has_jobsets: bool = True
