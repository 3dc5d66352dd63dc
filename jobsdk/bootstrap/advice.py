"""One line of advice for errors whose own words do not tell what to do."""

from __future__ import annotations

import re
from typing import Optional

#: What an error says, and what to do. The first that is found counts.
_ADVICE = (
    (
        # Only from within `fit`: in a loop of one's own they tell of other mistakes.
        r"\.fit\([\s\S]*(value \(PerReplica|\.PerReplica'>\) to a Tensor"
        r"|Invalid reduction dimension 0 for input with 0 dimensions)",
        "fit of Keras 3 fails under MultiWorkerMirroredStrategy: install tf_keras and set TF_USE_LEGACY_KERAS=1 in"
        " environment_variables, or write the loop with strategy.run",
    ),
    (
        r"ImportError: Keras cannot be imported",
        "with TF_USE_LEGACY_KERAS=1 tf.keras is the package tf_keras, which has TensorFlow's version:"
        " pip install tf_keras",
    ),
    (
        r"ValueError: There must be at least one ps\.",
        "ParameterServerStrategy needs a server: set parameter_server_count: 1 and chief: true in the distribution",
    ),
    (
        r"ValueError: Cluster spec must be non-empty",
        "the strategy found no TF_CONFIG: the job's distribution must be of the type tensorflow",
    ),
    (
        r"ValueError: There is no id for task_type 'ps'",
        "MultiWorkerMirroredStrategy has no parameter servers: remove parameter_server_count from the distribution",
    ),
    (
        r"Collective ops must be configured at program startup",
        "create the strategy before anything else of TensorFlow: before the first tensor, data set or model",
    ),
)


def advice(words: str) -> Optional[str]:
    """What to do about an error, if that is known; `words` is its traceback and the last lines."""
    return next((line for pattern, line in _ADVICE if re.search(pattern, words)), None)
