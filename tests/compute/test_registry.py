from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobsdk import compute as computes
from jobsdk.errors import ComputeError
from jobsdk.installation import install_command


def project(text: str) -> Path:
    file = Path("computes.yml").absolute()
    file.write_text(text)
    return file


def user(text: str) -> Path:
    file = computes.user_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", [None, "local", "azureml:local"])
def test_local_is_always_there(name: str | None) -> None:
    found = computes.resolve(name)
    assert (found.name, found.type) == ("local", "local")


def test_the_projects_file_is_found_from_below_and_the_users_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    here = project("default: laptop\ncomputes:\n  laptop: {type: local}\n  other: {type: local}\n")
    Path("a/b").mkdir(parents=True)
    monkeypatch.chdir("a/b")
    assert computes.resolve(None).name == "laptop"
    mine = user("default: other\ncomputes: {mine: {type: local}, laptop: {type: local}}\n")
    found = computes.configuration()
    assert found.default == "other"
    assert {name: entry.file for name, entry in found.computes.items()} == {
        "local": None,
        "laptop": mine,
        "other": here,
        "mine": mine,
    }
    assert computes.resolve("azureml:mine").name == "mine"


def test_an_unknown_compute_says_how_to_add_it_and_what_else_to_do() -> None:
    file = project("computes: {gpu_cluster: {type: local}}")
    with pytest.raises(ComputeError) as caught:
        computes.resolve("azureml:gpu-cluster")
    text = str(caught.value)
    assert "did you mean 'gpu_cluster'?" in text
    assert f"add it to {file} as 'computes: {{gpu-cluster: {{type: TYPE}}}}'" in text
    assert "--compute local" in text
    assert 'compute="local"' in text
    assert "?." not in text
    assert len(text) <= 400 + len(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("computes: [\n", "computes.yml:2:1: cannot be read"),
        ("a\tb: \t- x: }", "computes.yml"),
        ("- local", "must be a mapping"),
        ("computers: {}", "there is no key 'computers'"),
        ("computes: [a]", "computes must be a mapping of names"),
        ("default: 3", "default must be a name"),
        ("computes: {a: local}", "computes.a needs a type"),
        ("computes: {a: {}}", "computes.a needs a type"),
        ("computes: {local: {type: slurm}}", "computes.local is always this machine"),
        ("computes: {wanted: {type: slrm}}", "there is no compute type 'slrm': did you mean 'slurm'?"),
        (
            "computes: {wanted: {type: cloud}}",
            "there is no compute type 'cloud'; installed are azureml, kubernetes, local",
        ),
        ("computes: {wanted: {type: local, network: 3}}", "compute wanted: network must be a mapping"),
        ("machines: [a]", "machines must be a mapping of names"),
        ("machines: {a: {gpu: 8}}", "machines.a.gpu must be a text"),
        ("machines: {a: {gpuss: 8}}", "machines.a has no field 'gpuss': did you mean 'gpus'?"),
        ("computes: {wanted: {type: local, gpus: 2}}", "type local has no setting 'gpus'"),
    ],
)
def test_a_wrong_file_gives_one_clear_error(text: str, message: str) -> None:
    project(text)
    with pytest.raises(ComputeError) as caught:
        computes.resolve("wanted")
    assert message in str(caught.value)


def test_types_of_other_packages_are_found_and_their_failures_are_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    facts = site / "others-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[jobsdk.compute]\ngood = others_good:Good\nbroken = others_broken:Broken\n"
    )
    (site / "others_broken.py").write_text("raise RuntimeError('no engine here')\n")
    (site / "others_good.py").write_text(
        "from jobsdk.compute.local import LocalCompute\n"
        "class Good(LocalCompute):\n    type = 'good'\n    settings_known = {'queue': 'the queue'}\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    project("computes: {a: {type: good, queue: q1}, b: {type: broken}, c: {type: good, que: q1}}")
    assert computes.types() == ["azureml", "broken", "good", "kubernetes", "local", "ray", "slurm", "spark", "ssh"]
    assert computes.resolve("a").settings == {"queue": "q1"}
    with pytest.raises(ComputeError, match="no engine here"):
        computes.resolve("b")
    with pytest.raises(ComputeError, match="did you mean 'queue'"):
        computes.resolve("c")
    assert computes.resolve("local").name == "local"


def test_an_unknown_default_says_where_it_is_from_and_all_mistakes_are_told() -> None:
    file = project("default: nope")
    with pytest.raises(ComputeError, match=f"no compute 'nope', the default in {file}\\. Fix: "):
        computes.resolve(None)
    project("defalt: a\ncomputes: {a: {}, b: local}")
    with pytest.raises(ComputeError) as caught:
        computes.resolve(None)
    assert [line.split(": ")[1].split(" needs")[0][:24] for line in str(caught.value).splitlines()] == [
        "there is no key 'defalt'", "computes.a", "computes.b",
    ]  # fmt: skip


def test_a_built_in_type_whose_engine_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    project("computes: {a: {type: kubernetes}}")
    monkeypatch.setitem(sys.modules, "jobsdk.compute.kubernetes.compute", None)  # as a failed import leaves it
    with pytest.raises(ComputeError) as caught:
        computes.resolve("a")
    assert str(caught.value).startswith("the compute type kubernetes cannot be used here: ")
    assert str(caught.value).endswith(f"Fix: {install_command('kubernetes')}")
    assert computes.resolve("local").name == "local"


def test_a_sites_own_machines_are_known_and_win() -> None:
    project("machines: {rack-a: {gpus: 16, gpu: A100, infiniband: 400}, NC6: {gpus: 3}}")
    catalogue = computes.catalogue()
    machine = catalogue.find("Rack-A")
    assert machine is not None
    assert (machine.gpus, machine.has_infiniband) == (16, True)
    assert [catalogue.find(name).gpus for name in ("standard_nc6", "Standard_NC12")] == [3, 2]  # type: ignore[union-attr]
