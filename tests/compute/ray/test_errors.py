"""What is said where Ray cannot be used, without Ray."""

from __future__ import annotations

import pytest

from jobsdk.compute.ray import errors as ray_errors

_AUTO = (
    "Could not find any running Ray instance. Please specify the one to connect to by setting `--address` flag or "
    "`RAY_ADDRESS` environment variable."
)
_VERSIONS = (
    "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\nThis process has 2.60.0"
)


@pytest.mark.parametrize(
    ("address", "said", "words"),
    [
        (
            "auto",
            _AUTO,
            "no Ray cluster runs on this machine (address: auto). Fix: ray start --head, or set its address",
        ),
        (
            None,
            "Unknown keyword argument(s): num_gpuss",
            "no Ray can be started on this machine: Unknown keyword argument(s): num_gpuss. Fix: correct init of the "
            "compute",
        ),
        ("head:6379", _VERSIONS, ". Fix: use its versions of Ray and Python here, or the job submission API: "),
        ("head:6379", "Unauthorized.", ": Unauthorized. Fix: set RAY_AUTH_MODE=token"),
        ("head:6379", "something.\n", "cannot be used: something. Fix: correct address or init of the compute"),
    ],
)
def test_ray_that_cannot_be_connected_to(address: str | None, said: str, words: str) -> None:
    text = ray_errors.cannot_connect(address, said)
    assert words in text
    assert text.count("Fix: ") == 1
    assert ".." not in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Failed to connect to Ray at address: http://127.0.0.1:9.",
            "no Ray cluster answers at http://127.0.0.1:9 (Connection refused). Fix: start it, or correct address: "
            "the dashboard's port, by http or https",
        ),
        (
            "Version check returned 404. Jobs API is not supported on the Ray cluster.",
            "what answers at http://127.0.0.1:9 is no Ray cluster. Fix: correct address, whose port is that of the "
            "dashboard",
        ),
        ("401 Unauthorized.", "the Ray cluster at http://127.0.0.1:9: 401 Unauthorized. Fix: set RAY_AUTH_MODE=token"),
        ("no such job.", ": no such job. Fix: look at the cluster, or correct the compute"),
    ],
)
def test_what_the_job_submission_api_refuses(said: str, words: str) -> None:
    text = ray_errors.refused("http://127.0.0.1:9", said)
    assert words in text
    assert text.count("Fix: ") == 1
    assert ".." not in text
