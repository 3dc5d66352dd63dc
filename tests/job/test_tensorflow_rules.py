"""Rules about TensorFlow scripts: what is found, what is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobsdk import PyTorchDistribution, RayDistribution, TensorFlowDistribution, command
from jobsdk.findings import LIMIT, dotted

MIRRORED = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
FIT = MIRRORED + "model.fit(data, epochs=3)\n"
SERVED = """
from tensorflow import distribute as d
from tensorflow.distribute import ParameterServerStrategy
resolver = d.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    d.Server(resolver.cluster_spec()).join()
strategy = ParameterServerStrategy(resolver)
"""
ONE_MACHINE = "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n"

tensorflow = TensorFlowDistribution()
served = TensorFlowDistribution(chief=True, parameter_server_count=1)


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "src"


def found(**fields: Any) -> list[tuple[str, str, str]]:
    """What is found in a job of two nodes that runs train.py: severity, path and text."""
    job = command(**{"command": "python -u train.py", "code": "src", "instance_count": 2, **fields})
    assert all(len(str(finding)) <= LIMIT for finding in job.findings())
    return [(finding.severity, dotted(finding.path), str(finding)) for finding in job.findings()]


@pytest.mark.parametrize(
    ("script", "fields", "path", "says"),
    [
        # fit of Keras 3
        (FIT, {"distribution": tensorflow}, "command", "install tf_keras"),
        (FIT, {"distribution": tensorflow, "environment_variables": {"TF_USE_LEGACY_KERAS": "0"}}, "command", "fails"),
        (FIT, {"distribution": TensorFlowDistribution(worker_count=1, chief=True)}, "command", "strategy.run"),
        ('"""Says TF_USE_LEGACY_KERAS and tf_keras."""\n' + FIT, {"distribution": tensorflow}, "command", "fit"),
        (FIT.replace("epochs=3", "validation_data=v"), {"distribution": tensorflow}, "command", "train.py calls fit"),
        # roles
        (SERVED, {"distribution": TensorFlowDistribution(chief=True)}, "distribution", "parameter_server_count=1"),
        (SERVED, {"distribution": TensorFlowDistribution(parameter_server_count=1)}, "distribution", "chief=True"),
        (MIRRORED, {"distribution": TensorFlowDistribution(parameter_server_count=1)},
         "distribution.parameter_server_count", "remove it"),
        (ONE_MACHINE, {"distribution": tensorflow}, "command", "use MultiWorkerMirroredStrategy"),
        # types
        (MIRRORED, {"distribution": PyTorchDistribution()}, "command", "the type pytorch does not set it"),
        (MIRRORED, {"distribution": PyTorchDistribution(process_count_per_instance=2), "instance_count": 1}, "command",
         "distribution={'type': 'tensorflow'}"),
        ('import os, json\njson.loads(os.environ["TF_CONFIG"])' + SERVED, {"instance_count": 1}, "command",
         "a job without a distribution"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "",
)  # fmt: skip
def test_found(code: Path, script: str, fields: dict[str, Any], path: str, says: str) -> None:
    (code / "train.py").write_text(script)
    ((severity, where, text),) = found(**fields)
    assert (severity, where) == ("warning", path)
    assert says in text


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (FIT, {"distribution": tensorflow, "instance_count": 1}),
        (FIT, {"distribution": TensorFlowDistribution(worker_count=1)}),
        *((FIT, {"distribution": tensorflow, "environment_variables": {"TF_USE_LEGACY_KERAS": value}})
          for value in ("1", "true", "True")),
        (FIT, {"distribution": tensorflow, "command": "TF_USE_LEGACY_KERAS=1 python train.py"}),
        ("import tf_keras\n" + FIT, {"distribution": tensorflow}),
        ("from tf_keras.layers import Dense\n" + FIT, {"distribution": tensorflow}),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + FIT, {"distribution": tensorflow}),
        ("import legacy\n" + FIT, {"distribution": tensorflow}),
        ("from sub.keras2 import x\n" + FIT, {"distribution": tensorflow}),
        (MIRRORED, {"distribution": tensorflow}),
        (MIRRORED + "scaler.fit(data)\n", {"distribution": tensorflow}),
        (MIRRORED + "fit(data, epochs=3)\n", {"distribution": tensorflow}),
        ("import tensorflow  # MultiWorkerMirroredStrategy\nmodel.fit(data, epochs=3)\n", {"distribution": tensorflow}),
        (SERVED, {"distribution": served}),
        (SERVED.replace("TFConfigClusterResolver", "SimpleClusterResolver"), {"distribution": tensorflow}),
        (SERVED.replace("ParameterServerStrategy(", "compat.v1.distribute.experimental.ParameterServerStrategy("),
         {"distribution": tensorflow}),
        (MIRRORED + "if role == 'ps': serve()", {"distribution": TensorFlowDistribution(parameter_server_count=1)}),
        (ONE_MACHINE, {"distribution": tensorflow, "instance_count": 1}),
        (ONE_MACHINE + MIRRORED, {"distribution": tensorflow}),
        (MIRRORED, {"distribution": RayDistribution()}),
        (MIRRORED, {"instance_count": 1}),
        *((f"import os\n{setting}\n" + MIRRORED, {"distribution": PyTorchDistribution()})
          for setting in ("os.environ['TF_CONFIG'] = x", "os.environ.setdefault('TF_CONFIG', x)",
                          "run(env={'TF_CONFIG': x})")),
        (FIT, {"distribution": tensorflow, "command": "echo hi > x; python train.py"}),
        (FIT, {"distribution": tensorflow, "code": "https://example.com/code.git"}),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_left_alone(code: Path, script: str, fields: dict[str, Any]) -> None:
    (code / "train.py").write_text(script)
    (code / "legacy.py").write_text("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n")
    (code / "sub/keras2.py").write_text("import tf_keras as keras\n")
    assert found(**fields) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"", b"print 'Python 2'"), (b"", b"\0"), (b"\xff", b""), (b"-" * 100_000 + b"1\n", b""), (b"", b"#" * (1 << 20))],
    ids=["Python 2", "NUL", "encoding", "deep", "huge"],
)
def test_a_script_that_cannot_be_read_is_left_alone(code: Path, before: bytes, after: bytes) -> None:
    (code / "train.py").write_bytes(before + FIT.encode() + after)
    assert found(distribution=tensorflow) == []


def test_the_place_is_the_script_in_the_job_file(code: Path) -> None:
    from jobsdk import load_job

    (code / "train.py").write_text(FIT)
    job_file = code.parent / "job.yml"
    job_file.write_text(
        "code: src\ncommand: |\n  echo begin\n  python train.py\n"
        "distribution: {type: tensorflow}\nresources: {instance_count: 2}\n"
    )
    (finding,) = load_job(job_file).findings()
    assert (finding.line, finding.column) == (4, 10)


def test_a_single_file_is_looked_into_too(code: Path) -> None:
    (code / "train.py").write_text(FIT)
    ((severity, _, text),) = found(code="src/train.py", distribution=tensorflow)
    assert severity == "warning"
    assert "install tf_keras" in text
