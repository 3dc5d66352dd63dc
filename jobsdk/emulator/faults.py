"""Faults on request: what a client of Azure ML has to bear now and then, made to happen at a chosen moment."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobsdk.errors import JobsdkError

#: The kinds of faults that name a status by themselves: status, code, message.
_STATUSES = {
    401: ("ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current UTC time."),
    403: (
        "AuthorizationFailed",
        "The client does not have authorization to perform action 'Microsoft.MachineLearningServices/workspaces/write' "
        "over the scope, or the scope is invalid. If access was recently granted, please refresh your credentials.",
    ),
    404: ("ResourceNotFound", "The resource was not found."),
    409: ("Conflict", "The resource is being changed by another request."),
    429: ("TooManyRequests", "The request is being throttled as the limit has been reached."),
    500: ("InternalServerError", "An internal server error occurred. Please try again."),
    503: ("ServiceUnavailable", "The service is temporarily unavailable."),
}


@dataclass
class Fault:
    """One rule. A request fits if `method` (any if empty) is its method and the pattern `path` is found in its path or
    in its host's name. The next `times` requests that fit, after the first `after`, meet the fault.

    `status` answers in place of the service, with `code`, `message` and `retry_after` (seconds). `drop_after` closes
    a connection to a host in which `path` is found, once so many bytes have gone up. `expired_sas` gives out
    signatures for uploads that have run out.
    """

    method: str = ""
    path: str = ""
    times: int = 1
    after: int = 0
    status: int | None = None
    code: str | None = None
    message: str | None = None
    retry_after: float | None = None
    drop_after: int | None = None
    expired_sas: bool = False

    def answer(self) -> tuple[int, str, str, dict[str, str]]:
        """Status, code, message and headers in place of the service's."""
        status = self.status or 500
        code, message = _STATUSES.get(status, ("UserError", "The request was refused."))
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after:g}"}
        return status, self.code or code, self.message or message, headers


class Faults:
    """The rules that are in force; a rule that is used up is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Fault] = []

    def add(self, given: Any) -> None:
        """A rule as a mapping with the fields of `Fault`. Raises JobsdkError."""
        rule = _structured(given)
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def hit(self, kind: str, method: str, host: str, path: str) -> Fault | None:
        """The rule of `kind` (status, drop_after or expired_sas) that a request meets; it counts as met."""
        with self._lock:
            for rule in self._rules:
                if getattr(rule, kind) in (None, False):
                    continue
                if (rule.method and rule.method.upper() != method) or not re.search(rule.path, host + path):
                    continue
                if rule.after > 0:
                    rule.after -= 1
                    continue
                rule.times -= 1
                if rule.times <= 0:
                    self._rules.remove(rule)
                return rule
        return None


def _structured(given: Any) -> Fault:
    if not isinstance(given, Mapping):
        raise JobsdkError(f"a fault must be a mapping with the keys {', '.join(Fault.__dataclass_fields__)}")
    for key, value in given.items():
        field = Fault.__dataclass_fields__.get(key)
        if field is None:
            raise JobsdkError(f"a fault has no {key!r}. Fix: the keys are {', '.join(Fault.__dataclass_fields__)}")
        kinds = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}[str(field.type).split(" ")[0]]
        if not isinstance(value, kinds) or (bool not in kinds and isinstance(value, bool)):
            raise JobsdkError(f"a fault's {key} cannot be {value!r}: it is of the type {field.type}")
    rule = Fault(**given)
    if sum(kind not in (None, False) for kind in (rule.status, rule.drop_after, rule.expired_sas)) != 1:
        raise JobsdkError("a fault needs exactly one of status, drop_after and expired_sas")
    try:
        re.compile(rule.path)
    except re.error as error:
        raise JobsdkError(f"a fault's path is no pattern: {error}") from None
    return rule
