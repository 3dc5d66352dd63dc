"""Jobs as people may write them for Azure ML, with every field that its job files have; sound ones alone.

Local paths lead to what `lay_out` puts into a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

_SCOPE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices"
_MODES = st.sampled_from(["ro_mount", "download", "direct"])


def lay_out(folder: Path) -> None:
    """What the jobs name: code, data, models, the files of environments."""
    files = {
        "src/train.py": "print(1)\n",
        "src/Lib/util.py": "X = 1\n",
        "src/lib.txt": "",
        "data/part 1.csv": "1,2\n",
        "data/sub/b.csv": "3\n",
        "data/a.tmp": "left out\n",
        "data/.amlignore": "*.tmp\n!keep.tmp\nsub/x/\n",
        "data/sub/x/y.csv": "",
        "data/.gitignore": "*.csv\n",
        "file.csv": "1\n",
        "model/MLmodel": "flavors: {}\n",
        "model/.gitignore": "*.bin\n# a comment\n\n",
        "model/weights.bin": "w",
        "conda.yml": "name: env\ndependencies:\n- python=3.11\n- pip:\n  - numpy\n",
        "context/Dockerfile": "FROM ubuntu\n",
        "context/other/Dockerfile.gpu": "FROM cuda\n",
        "env.yml": "name: of-a-file\nversion: 3\nimage: ubuntu:22.04\nconda_file: conda.yml\n",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _optional(fields: dict[str, st.SearchStrategy[Any]], **needed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(needed, optional=fields)


def _any_case(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from([spelt for name in names for spelt in (name, name.upper(), name.title())])


def texts(least: int = 0) -> st.SearchStrategy[str]:
    """Any text that a file can hold."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    found = st.one_of(
        st.text(letters, min_size=least, max_size=20), st.sampled_from(["a", "true", "1", "x: y", "null"])
    )
    return found.filter(lambda text: bool(text.strip()) or not least)


_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
_RUN_NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
_WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,10}", fullmatch=True)
_FREE = st.dictionaries(texts(), st.one_of(texts(), st.none()), max_size=3)
_COUNTS = st.one_of(st.integers(1, 64), st.integers(1, 64).map(str))
_LABELS = st.sampled_from(["latest", "default"])


def _assets(kind: str) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("azureml:{}:{}".format, _WORDS, st.integers(1, 99)),
        st.builds("azureml:{}@{}".format, _WORDS, st.just("latest")),
        st.just(f"azureml:{_SCOPE}/workspaces/w/{kind}/d/versions/2"),
    )


_REMOTE = st.sampled_from(
    [
        "https://host.example/data/file.csv",
        "wasbs://container@account.blob.core.windows.net/a/b",
        "abfss://files@account.dfs.core.windows.net/a",
        "adl://account.azuredatalakestore.net/a",
        "azureml://datastores/store/paths/a/b.csv",
        "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/d/paths/p",
    ]
)
_DATASTORE = {"datastore": st.sampled_from(["workspaceblobstore", "other"])}


def _data(kind: str, *local: str) -> st.SearchStrategy[Any]:
    paths = st.one_of(_REMOTE, _assets("data"))
    remote = _optional({"mode": _MODES, **_DATASTORE}, type=_any_case(kind), path=paths)
    modes = st.sampled_from(["ro_mount", "download"])
    here = _optional({"mode": modes, **_DATASTORE}, type=st.just(kind), path=st.sampled_from(local))
    return st.one_of(remote, here)


_INPUTS = st.one_of(
    texts(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.fixed_dictionaries({"value": st.one_of(texts(), st.integers(), st.booleans())}),
    _data("uri_file", "file.csv", "./data/part 1.csv", "data/../file.csv"),
    _data("uri_folder", "data", "./data/sub", "model/"),
    st.fixed_dictionaries({"path": st.one_of(_REMOTE, _assets("data"), st.just("data"))}),
    _optional(
        {"mode": st.sampled_from(["eval_mount", "eval_download", "direct", "download", "ro_mount"])},
        type=st.just("mltable"),
        path=_REMOTE,
    ),
    *(
        _optional({"mode": _MODES}, type=_any_case(kind), path=st.one_of(_REMOTE, _assets("models")))
        for kind in ("mlflow_model", "custom_model")
    ),
    st.fixed_dictionaries({"type": st.just("mlflow_model"), "path": st.just("model")}),
    _optional({"mode": _MODES}, type=st.just("triton_model"), path=_REMOTE),
)

_OUTPUTS = st.one_of(
    st.none(),
    _optional(
        {
            "type": _any_case(
                "uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model"
            ),
            "mode": st.sampled_from(["rw_mount", "mount", "upload", "direct"]),
            "path": st.sampled_from(["azureml://datastores/store/paths/out", "wasbs://c@a.blob.core.windows.net/o"]),
        }
    ),
    _optional({"version": st.one_of(st.integers(1, 9), _WORDS)}, name=st.from_regex("[A-Za-z0-9_-]+", fullmatch=True)),
)  # fmt: skip

_INLINE = {
    "os_type": st.sampled_from(["Linux", "linux", "Windows"]),
    "description": texts(),
    "tags": st.dictionaries(_WORDS, texts(), max_size=2),
}
_CONDA = st.one_of(
    st.just("conda.yml"),
    st.fixed_dictionaries(
        {"dependencies": st.lists(st.one_of(_WORDS, st.fixed_dictionaries({"pip": st.lists(_WORDS)})), min_size=1)},
        optional={"name": _WORDS, "channels": st.lists(_WORDS, min_size=1, max_size=2)},
    ),
)
_BUILD = st.one_of(
    st.fixed_dictionaries({"path": st.sampled_from(["context", "./context"])}),
    st.just({"path": "context", "dockerfile_path": "other/Dockerfile.gpu"}),
)
_ENVIRONMENTS = st.one_of(
    st.builds("azureml:{}:{}".format, _WORDS, st.one_of(st.integers(1, 99), _WORDS)),
    st.builds("azureml:{}@{}".format, _WORDS, st.just("latest")),
    st.sampled_from(["azureml:name:1:2", "azureml:my env:1", "azureml:my env@latest", "azureml:AzureML-an env:1:2"]),
    st.builds("azureml:AzureML-{}@{}".format, _WORDS, _LABELS),
    st.builds("azureml:AzureML-{}:{}".format, _WORDS, st.integers(1, 9)),
    st.builds("azureml://registries/azureml/environments/{}/versions/{}".format, _WORDS, st.integers(1, 9)),
    st.builds("azureml://registries/azureml/environments/{}/labels/{}".format, _WORDS, _LABELS),
    st.just(f"azureml:{_SCOPE}/workspaces/w/environments/d/versions/2"),
    st.just("file:env.yml"),
    _optional({**_INLINE, "conda_file": _CONDA, "name": _WORDS, "version": st.integers(1, 9)}, image=_WORDS),
    _optional(_INLINE, build=_BUILD),
)

_DISTRIBUTIONS = st.one_of(
    _optional({"process_count_per_instance": _COUNTS}, type=_any_case("pytorch", "mpi")),
    _optional({"parameter_server_count": st.integers(0, 9)}, type=_any_case("tensorflow")),
    _optional(
        {
            "port": st.integers(1, 65535),
            "address": _WORDS,
            "include_dashboard": st.booleans(),
            "dashboard_port": st.integers(1, 65535),
            "head_node_additional_args": texts(),
            "worker_node_additional_args": texts(),
        },
        type=_any_case("ray"),
    ),
)

_PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), texts()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_WORDS, inner, max_size=2)),
    max_leaves=4,
)
_RESOURCES = _optional(
    {
        "instance_count": _COUNTS,
        "instance_type": _WORDS,
        "properties": st.dictionaries(
            st.one_of(_WORDS, _any_case("singularity", "aisupercomputer", "itp", "target_selector")), _PLAIN, max_size=2
        ),
        "locations": st.lists(_WORDS, max_size=2),
        "shm_size": st.from_regex("[1-9][0-9]{0,3}[bkmg]", fullmatch=True),
        "max_instance_count": _COUNTS,
        "docker_args": st.one_of(texts(), st.lists(texts(), max_size=2)),
    }
).filter(lambda given: len({name.lower() for name in given.get("properties", {})}) == len(given.get("properties", {})))

_PORT = {
    "port": st.integers(1, 65535),
    "nodes": st.just("all"),
    "properties": st.dictionaries(_WORDS, texts(), max_size=2),
}
_SERVICES = st.one_of(
    _optional({**_PORT, "ssh_public_keys": texts(1)}, type=st.just("ssh")),
    _optional({**_PORT, "log_dir": texts(1)}, type=st.just("tensor_board")),
    _optional(_PORT, type=st.sampled_from(["jupyter_lab", "vs_code"])),
)
_MANAGED = ["managed", "Managed", "managed_identity", "ManagedIdentity", "managedIdentity"]
_UNMANAGED = ["aml_token", "AMLToken", "AmlToken", "amlToken", "user_identity", "UserIdentity", "userIdentity"]
_IDENTITIES = st.one_of(
    _optional({"client_id": _WORDS, "object_id": _WORDS}, type=st.sampled_from(_MANAGED)),
    st.fixed_dictionaries({"type": st.sampled_from(_UNMANAGED)}),
)
_COMPUTES = st.one_of(
    st.sampled_from(["local", "serverless", f"azureml:{_SCOPE}/workspaces/w/computes/c", "azureml:virtualClusters/vc"]),
    _WORDS,
    _WORDS.map("azureml:{}".format),
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "$schema": st.just("https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"),
    "type": st.just("command"),
    "name": _RUN_NAMES,
    "display_name": texts(),
    "experiment_name": texts(1),
    "description": texts(),
    "tags": _FREE,
    "properties": st.one_of(_FREE, st.just({"_azureml.ComputeTargetType": "amlcdsi", "a": "b"})),
    "code": st.sampled_from(["src", "./src", "src/train.py", f"azureml:{_SCOPE}/workspaces/w/codes/c/versions/1"]),
    "environment_variables": st.dictionaries(st.from_regex("V_[A-Z0-9_]{0,5}", fullmatch=True), texts(), max_size=3),
    "inputs": st.dictionaries(_NAMES, _INPUTS, max_size=3),
    "outputs": st.dictionaries(_NAMES, _OUTPUTS, max_size=2),
    "compute": _COMPUTES,
    "distribution": _DISTRIBUTIONS,
    "resources": _RESOURCES,
    "limits": _optional(
        {"timeout": st.one_of(st.integers(1, 10**7), st.integers(1, 30).map(lambda days: days * 86400), st.just(30.5))}
    ),
    "services": st.dictionaries(_WORDS, _SERVICES, max_size=2),
    "queue_settings": _optional(
        {
            "job_tier": _any_case("spot", "basic", "standard", "premium", "null"),
            "priority": _any_case("low", "medium", "high"),
        }
    ),
    "identity": _IDENTITIES,
    "parent_job_name": _RUN_NAMES,
}


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job file's data."""
    data: dict[str, Any] = draw(_optional(_FIELDS, environment=_ENVIRONMENTS))
    words = ["echo", "$HOME", "'a b'", "&&", "\n", "{x}", "$(date)", "#", "é"]
    words += [f"${{{{inputs.{name}}}}}" for name in data.get("inputs", {})]
    words += [f"${{{{outputs.{name}}}}}" for name in data.get("outputs", {})]
    if data.get("distribution", {}).get("type", "").lower() == "tensorflow" and draw(st.booleans()):
        nodes = int(data.get("resources", {}).get("instance_count", 1))
        data["distribution"]["worker_count"] = draw(st.integers(1, nodes))
    first = ["python train.py"] if "src" in data.get("code", "") else ["nvidia-smi"]
    data["command"] = " ".join([*first, *draw(st.lists(st.sampled_from(words), max_size=5))])
    order = draw(st.permutations(list(data)))
    return {name: data[name] for name in order}
