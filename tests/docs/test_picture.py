"""The picture of the README shows what its script prints."""

from __future__ import annotations

import importlib.util
import re
from html import unescape
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.docs.snippets import ROOT
from tests.docs.tutorials import lines


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "scripts/picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_shows_what_the_script_prints(picture: ModuleType) -> None:
    drawn = re.findall(r"<text [^>]*>(.*?)</text>", picture.PICTURE.read_text())
    assert lines(unescape("\n".join(drawn))) == lines("\n".join(picture.shown())), "python scripts/picture.py"


@pytest.mark.parametrize("path", sorted((ROOT / "docs/assets").glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_whole_and_loads_nothing(path: object) -> None:
    text = ROOT.joinpath("docs/assets", str(path)).read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|<image", text)
