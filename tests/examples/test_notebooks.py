"""The notebooks of src_examples: kept clean, and run from top to bottom in a fresh kernel."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.emulator.emulated import emulated, names, use
from tests.notebook.kernel import jupyter_of_its_own

JUPYTER = pytest.mark.framework("jupyter")
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "src_examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
OF_JOB_FILES = ["cifar10.ipynb", "mnist_tensorflow.ipynb"]


class Notebook:
    """A notebook that is run in `folder`. `parameters` take the place of those in its cell of that tag."""

    def __init__(self, path: Path, **parameters: Any) -> None:
        self.content = nbformat.read(path, as_version=4)
        given = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        self.cell("parameters").source += f"\n{given}"

    def cell(self, tag: str) -> Any:
        (found,) = (cell for cell in self.content.cells if tag in cell.metadata.get("tags", []))
        return found

    def run(self, folder: Path, until: str | None = None) -> None:
        """Run all cells, or those up to the one of a tag."""
        if until is not None:
            self.content.cells = self.content.cells[: self.content.cells.index(self.cell(until)) + 1]
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(self.content, kernel_name="python3", timeout=240, resources=resources).execute()

    def shown(self, tag: str, kind: str = "text/plain") -> str:
        """What a cell printed and gave as its result."""
        parts = []
        for output in self.cell(tag).outputs:
            if output.output_type == "stream":
                parts.append(output.text)
            else:
                parts.append(output.data.get(kind, ""))
        return "".join(parts)

    def losses(self, tag: str) -> list[float]:
        """The losses of the runs whose lines end a cell's output."""
        last = self.shown(tag).strip().splitlines()[-1]
        return [float(loss) for loss in re.findall(r"\b\d+\.\d{4,6}\b", last)]


@pytest.fixture(autouse=True)
def jupyter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jupyter_of_its_own(home, monkeypatch)


def check(notebook: Notebook) -> None:
    """What holds for every notebook that was run."""
    code = [cell for cell in notebook.content.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert notebook.shown("valid") == "no findings: the job is valid"
    losses = notebook.losses("losses")
    assert len(losses) == 3
    assert losses[-1] < 0.9 * losses[0]
    assert len(notebook.losses("again")) == 3
    for pictures in ("losses", "predictions"):
        assert notebook.shown(pictures, "image/png")
    assert "did you mean" in notebook.shown("misspelt")
    assert notebook.shown("wrong").count("error: ") >= 2
    printed = "".join(str(cell.outputs) for cell in code)
    assert "\x1b[" not in printed.replace("\\x1b", "\x1b")


@pytest.fixture(
    params=["local", pytest.param("gpu-cluster", marks=[pytest.mark.engine("azurite"), pytest.mark.parity])]
)
def compute(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What stands in the cell that says where the job runs: this machine, or Azure ML as the emulator has it."""
    if request.param == "local":
        yield request.param
        return
    with emulated() as running:
        use(running, monkeypatch)
        keys = ("subscription_id", "resource_group", "workspace_name")
        entry = {"type": "azureml", "image": "ubuntu:24.04", **dict(zip(keys, names(running), strict=True))}
        settings = home / "config/jobsdk/computes.yml"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps({"computes": {request.param: entry}}))
        yield request.param


@JUPYTER
@pytest.mark.framework("torch")
def test_cifar10_from_its_own_folder(compute: str, tmp_path: Path) -> None:
    notebook = Notebook(EXAMPLES / "cifar10.ipynb", EPOCHS=3, IMAGES=100, DATA=str(tmp_path / "data"))
    notebook.cell("where").source = f"COMPUTE = {compute!r}"
    notebook.run(EXAMPLES)
    check(notebook)
    for rank in range(4):
        assert f"[rank {rank}] rank {rank} of 4 on cpu\n" in notebook.shown("stream")
    assert re.findall(r"^\[(.*?)\]", notebook.shown("one-rank"), re.MULTILINE) == ["rank 3"] * 4
    cause = notebook.shown("cause")
    assert "rank 3 on node 1 exited with code 1: FileNotFoundError" in cause
    assert "in load\n" in cause
    assert "'/not/mounted/data_batch_1'" in cause
    assert "'rank': 3" in notebook.shown("report")


@JUPYTER
@pytest.mark.framework("tensorflow")
def test_mnist_tensorflow_from_the_repository(tmp_path: Path) -> None:
    notebook = Notebook(EXAMPLES / "mnist_tensorflow.ipynb", EPOCHS=3, IMAGES=1000, DATA=str(tmp_path / "data"))
    assert notebook.cell("where").source == 'COMPUTE = "local"'
    notebook.run(REPOSITORY)
    check(notebook)
    assert '"index": 1' in notebook.shown("tf-config")
    assert "[rank 0] worker 0 trains on 1 of 2 devices\n" in notebook.shown("stream")
    weights = re.findall(r"worker \d weights (\w+)", notebook.shown("weights"))
    assert len(weights) == 2
    assert len(set(weights)) == 1
    cause = notebook.shown("cause")
    assert "rank 1 (worker 1) on node 1 exited with code 1: FileNotFoundError" in cause
    assert "/not/mounted" in cause


@JUPYTER
@pytest.mark.framework("torch")
def test_functions_from_a_folder_of_its_own(tmp_path: Path) -> None:
    notebook = Notebook(EXAMPLES / "functions.ipynb", STEPS=30)
    notebook.run(tmp_path)
    assert len(re.findall(r"^\[rank [01]\] loss 0\.\d{4}$", notebook.shown("stream"), re.MULTILINE)) == 2
    weight, bias = map(float, re.findall(r"-?\d\.\d+", notebook.shown("weights")))
    assert weight != 0 != bias
    assert notebook.shown("all-ranks") == "[0, 1]\n"
    assert notebook.shown("map") == "best rate 0.5\n"
    assert notebook.shown("completed") == "[0, 1, 4]\n"
    fails = notebook.shown("fails")
    assert fails.startswith("in rank 1 on node 1:\n\nTraceback (most recent call last):\n")
    assert '    return 1 // (1 - int(os.environ["RANK"]))\n' in fails
    assert "cannot pickle '_thread.lock' reached through reads.dataset.lock. Fix:" in notebook.shown("cannot")


@JUPYTER
@pytest.mark.parametrize("name", OF_JOB_FILES)
def test_a_copy_elsewhere_makes_its_own_data(name: str, tmp_path: Path) -> None:
    examples = tmp_path / "src_examples"
    shutil.copytree(EXAMPLES, examples)
    notebook = Notebook(examples / name, IMAGES=20)
    notebook.run(tmp_path, until="valid")
    assert notebook.shown("valid") == "no findings: the job is valid"
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nothing_of_a_run_is_kept_in_the_file(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert text == nbformat.writes(notebook, indent=1) + "\n"
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_there_are_three() -> None:
    assert sorted(["functions.ipynb", *OF_JOB_FILES]) == NOTEBOOKS
