"""Recognizing a run's secret values in what its programs print, without keeping the values.

The values are known when a run is submitted, on this machine or to a cluster, and are deleted when it ends. What stays
of each form in which a program may print one is a mark: its length, a sum over its bytes, which tells at little cost
where in a text it cannot be, and a keyed hash. The key is a file of the user's outside of the runs' folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from jobsdk.bootstrap.spec import plan_file, secrets
from jobsdk.home import locked
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import SecretParts

_MARKS, _KEY = "secret-marks.json", "secret-marks.key"
_KEY_BYTES = 32


def keep_marks(run: RunFolder, hidden: SecretParts, environ: Mapping[str, str]) -> None:
    """Keep the marks of the secrets that `hidden`, what a plan leaves out, and the environment `environ` hold."""
    forms = {form for one in secrets.redactor(hidden, environ).forms for form in _as_shown(one)}
    if not forms:  # a hash of nothing would cost every start some milliseconds
        run.write_private(_MARKS, {"key": "", "marks": []})
        return
    hashing = _Hashing(_make_key(run))
    marks = [[len(form), hashing.sums(form)[-1], hashing.digest(form)] for form in forms]
    run.write_private(_MARKS, {"key": hashing.digest(b""), "marks": sorted(marks)})


class Mask:
    """Puts `***` in the place of values that the marks tell of, and of what looks like a secret by its form."""

    def __init__(self, key: bytes = b"", marks: Iterable[tuple[int, int, str]] = ()) -> None:
        self._hashing = _Hashing(key)
        self._digests: dict[int, dict[int, set[str]]] = {}  # by the length of a form, and the sum over it
        for length, total, digest in marks:
            self._digests.setdefault(length, {}).setdefault(total, set()).add(digest)
        self._redactor = secrets.Redactor()
        #: Of the forms that it knows, in bytes.
        self.longest = max(self._digests, default=0)

    def __call__(self, text: str) -> str:
        spans = self._spans(data) if (data := _encoded(text)) and self._digests else []
        if spans:
            pieces: list[bytes] = []
            upto = 0
            for start, end in sorted(spans):
                if start > upto or not pieces:
                    pieces += [data[upto:start], secrets.MASK.encode()]
                upto = max(upto, end)
            text = b"".join([*pieces, data[upto:]]).decode("utf-8", "surrogatepass")
        return self._redactor.text(text)

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        sums, found = self._hashing.sums(data), []
        for length, digests in self._digests.items():
            for start, total in enumerate(map(sub, sums[length:], sums)):
                if total in digests:
                    end = start + length
                    if self._hashing.digest(data[start:end]) in digests[total]:
                        found.append((start, end))
        return found


def mask_of(run: RunFolder) -> Mask | None:
    """What recognizes the secrets of `run`; None if it has some that cannot be recognized here: it was submitted from
    elsewhere, or its marks are gone."""
    try:
        kept = json.loads((run.path / _MARKS).read_bytes())
        if not kept["marks"]:
            return Mask()
        key = _read_key(run)
    except FileNotFoundError:
        return None if run.plan().get("secrets") or run.plan().get("sealed") else Mask()
    except (OSError, ValueError, KeyError):
        return None
    return Mask(key, kept["marks"]) if _Hashing(key).digest(b"") == kept["key"] else None


class _Hashing:
    def __init__(self, key: bytes) -> None:
        import hashlib

        self._key = key
        self._blake2b = hashlib.blake2b
        self._weights = hashlib.shake_256(key).digest(256)

    def sums(self, data: bytes) -> list[int]:
        """Sums over the first 0, 1, 2, ... bytes, each byte with a weight that only the key tells."""
        return [0, *accumulate(data.translate(self._weights))]

    def digest(self, data: bytes) -> str:
        return self._blake2b(data, key=self._key, digest_size=32).hexdigest()


def _as_shown(form: str) -> Iterator[bytes]:
    """A form of a value as it is, and as it looks when a log is read and shown."""
    from jobsdk.bootstrap.failures.tracebacks import plain

    yield _encoded(form)
    shown = plain(form.encode("utf-8", "surrogateescape").decode("utf-8", "replace")).strip()
    if len(shown) >= secrets.SHORTEST:
        yield _encoded(shown)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _make_key(run: RunFolder) -> bytes:
    """The user's key, which the first submission makes."""
    path = _key_path(run)
    with locked(path.with_suffix(".lock")):
        if not path.exists() or path.stat().st_size != 2 * _KEY_BYTES:  # or a full disk took only a part of it
            path.unlink(missing_ok=True)
            plan_file.write_private(str(path), os.urandom(_KEY_BYTES).hex())
    return _read_key(run)


def _read_key(run: RunFolder) -> bytes:
    return bytes.fromhex(_key_path(run).read_text())


def _key_path(run: RunFolder) -> Path:
    return run.path.parent.parent / _KEY  # in the home that the run is in
