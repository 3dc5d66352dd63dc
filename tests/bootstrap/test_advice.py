"""Advice: what TensorFlow says, word for word, and what is said to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobsdk.bootstrap.advice import advice
from jobsdk.run import failure_text
from tests.bootstrap.runs import LocalRun, plan

FIT = """  File "train.py", line 57, in main
    model.fit(training, epochs=3)
  File "site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
"""
PER_REPLICA = "ValueError: Attempt to convert a value (PerReplica:{"
TO_A_TENSOR = (
    "}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor."
)
REDUCTION = (
    "ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum_3}} = Sum[T=DT_FLOAT,"
    " Tidx=DT_INT32, keep_dims=false](div_no_nan_1, Sum_3/reduction_indices)' with input shapes: [], []"
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (FIT + PER_REPLICA, "TF_USE_LEGACY_KERAS=1"),
        (FIT + TO_A_TENSOR, "TF_USE_LEGACY_KERAS=1"),
        (FIT + REDUCTION, "strategy.run"),
        ("ImportError: Keras cannot be imported. Check that it is installed.", "pip install tf_keras"),
        ("ValueError: There must be at least one ps.", "parameter_server_count: 1"),
        ("ValueError: Cluster spec must be non-empty in `tf.distribute.cluster_resolver.ClusterResolver`.",
         "of the type tensorflow"),
        ("ValueError: There is no id for task_type 'ps'", "remove parameter_server_count"),
        ("RuntimeError: Collective ops must be configured at program startup", "before the first tensor"),
    ],
)  # fmt: skip
def test_what_to_do(words: str, says: str) -> None:
    line = advice(f"epoch 1/2 loss 0.4\n{words}\n")
    assert line is not None
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "words",
    ["", "ValueError: x", "ImportError: No module named 'keras'", FIT + "ValueError: x", PER_REPLICA, REDUCTION],
    ids=["nothing", "any", "other module", "fit", "a loop's own mistake", "a reduction of one's own"],
)
def test_nothing_is_said_of_other_errors(words: str) -> None:
    assert advice(words) is None


def test_a_report_has_the_advice_and_a_person_sees_it(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("raise RuntimeError('Collective ops must be configured at program startup')")
    run = LocalRun(tmp_path / "run", plan(f"python {tmp_path / 'fail.py'}", nodes=1))
    assert run.wait() == 1
    report = run.report()
    says = report["cause"]["advice"]
    assert says.startswith("create the strategy before anything else of TensorFlow")
    assert failure_text(report, "run").splitlines()[-1] == f"advice: {says}"


def test_a_failure_without_advice_shows_none(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("echo oh; exit 3", nodes=1))
    assert run.wait() == 3
    assert run.report()["cause"]["advice"] is None
    assert "advice" not in failure_text(run.report(), "run")
