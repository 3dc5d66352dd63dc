"""Each setting: what it changes in the objects of a job, in a golden file, and the words of its mistakes.

A golden file lists the changed fields, by their paths. JOBSDK_WRITE_GOLDEN=1 writes the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from jobsdk.compute.kubernetes.patches import MERGE_KEYS
from jobsdk.compute.kubernetes.settings import SETTINGS
from jobsdk.errors import ComputeError
from tests.compute.kubernetes import test_objects
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.server import ApiServer
from tests.compute.kubernetes.test_objects import EVERYTHING, VERSIONS, check

GOLDEN = Path(__file__).parent / "golden"


class Case(NamedTuple):
    settings: dict[str, Any]
    versions: tuple[str, ...] = VERSIONS  # of Kubernetes, by whose schemas it passes


CASES: dict[str, Case] = {
    "patches": Case({
        "patches": [
            {"kind": "Container", "patch": {"env": [{"name": "MORE", "value": "1"}]}},
            {"kind": "Pod", "patch": {"spec": {"containers": [{"name": "proxy", "image": "p"}]}}},
        ],
    }),
    "env": Case({
        "env": {
            "MODE": {"config_map": "modes", "key": "mode"}, "PLAIN": "x", "TOKEN": {"secret": "hub", "key": "token"},
        },
    }),
    "env_from": Case({"env_from": [{"secret": "hub", "prefix": "HUB_"}, {"config_map": "modes"}]}),
}  # fmt: skip

#: The settings whose effect other tests look at.
ELSEWHERE = {
    *EVERYTHING, "accelerator_label", "accelerators", "capabilities", "code_url", "code_volume", "context", "devices",
    "image", "jobset", "python", "queue", "read_only_root", "run_as_non_root", "run_as_user", "service_account_token",
    "toleration_seconds",
}  # fmt: skip


def compiled(configure: Configure, server: ApiServer, settings: dict[str, Any]) -> list[dict[str, Any]]:
    configure(server, **{"image": "registry.example/train:1", **settings})
    found: list[dict[str, Any]] = test_objects.compiled().spec["objects"]
    return found


def changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, new value) of what differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in after:
                yield f"{path}/{key}", None
            else:
                yield from changes(before.get(key), after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and (key := MERGE_KEYS.get(path.rpartition("/")[2])):
        yield from changes({one[key]: one for one in before}, {one[key]: one for one in after}, path)
    elif before != after:
        yield path, after


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, configure: Configure, server: ApiServer) -> None:
    case = CASES[name]
    plain = {one["kind"]: one for one in compiled(configure, server, {})}
    found = compiled(configure, server, case.settings)
    check(found, case.versions)
    text = yaml.safe_dump(dict(changes(plain, {one["kind"]: one for one in found})), sort_keys=True, width=120)
    path = GOLDEN / f"{name}.yml"
    if os.environ.get("JOBSDK_WRITE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_setting_is_tested() -> None:
    assert {name for case in CASES.values() for name in case.settings} | ELSEWHERE == set(SETTINGS)
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(CASES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"patches": [{"kind": "Container", "patch": {"env": [{"value": "x"}]}}]},
            "patches env[0] needs name, by which Kubernetes merges this list",
        ),
        ({"env": {"A": {"secret": "s"}}}, "env must be a mapping of texts, {secret: NAME, key: KEY} and {config_map"),
        ({"env": {"A": {"secret": "s", "config_map": "c", "key": "k"}}}, "env must be a mapping of texts, {secret"),
        ({"env_from": [{"prefix": "X_"}]}, "env_from {'prefix': 'X_'}: needs one of secret, config_map"),
        ({"env_from": [{"secret": "s", "prefx": "X_"}]}, "there is no 'prefx'; there are prefix, secret, config_map"),
        ({"env_from": {"secret": "s"}}, "env_from must be a list of mappings"),
    ],
)
def test_mistakes(settings: dict[str, Any], words: str, configure: Configure, server: ApiServer) -> None:
    with pytest.raises(ComputeError) as caught:
        compiled(configure, server, settings)
    assert words in str(caught.value)
