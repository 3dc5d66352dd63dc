"""Expressions in commands: what is a reference, what only looks like one, and what a shell makes of values."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.job.expressions import (
    Ref,
    breaks,
    current,
    parse,
    problems,
    quotes_at,
    references,
    render_optional,
    text_of,
    written,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain $HOME {x} ${y}", ("plain $HOME {x} ${y}",)),
        ("${{inputs.x}}", (Ref("inputs", "x", 0),)),
        ("a ${{ inputs.x }} b", ("a ", Ref("inputs", "x", 2), " b")),
        ("${{outputs.y}}/z", (Ref("outputs", "y", 0), "/z")),
        ("${{inputs.a}}${{inputs.b}}", (Ref("inputs", "a", 0), Ref("inputs", "b", 13))),
        ("${{input.x}} ${{inputs}} ${{inputs.}}", ("${{input.x}} ${{inputs}} ${{inputs.}}",)),
        ("${{inputs.x ${{inputs.y}}", ("${{inputs.x ", Ref("inputs", "y", 12))),
        ("a {inputs.x}/{outputs.y }", ("a ", Ref("inputs", "x", 2), "/", Ref("outputs", "y", 13))),
        ("${inputs.x}", ("$", Ref("inputs", "x", 1))),
        ("{ inputs.x} {{inputs.x}} {inputs.x}} {inputs}", ("{ inputs.x} {{inputs.x}} {inputs.x}} {inputs}",)),
        ("{inputs.x[0]} {search_space.x}", ("{inputs.x[0]} {search_space.x}",)),
    ],
)
def test_parse(text: str, parts: tuple[object, ...]) -> None:
    assert parse(text) == parts


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
plain = st.text(st.characters(exclude_characters="${}[]", exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.one_of(plain, st.tuples(st.sampled_from(["inputs", "outputs"]), names, st.sampled_from(["", " "])))))
def test_parse_takes_apart_what_was_put_together(pieces: list[str | tuple[str, str, str]]) -> None:
    text = ""
    expected: list[str | Ref] = []
    for piece in pieces:
        if isinstance(piece, tuple):
            namespace, name, space = piece
            expected.append(Ref(namespace, name, len(text)))
            text += f"${{{{{space}{namespace}.{name}{space}}}}}"
        elif piece:
            if expected and isinstance(expected[-1], str):
                expected[-1] += piece
            else:
                expected.append(piece)
            text += piece
    assert list(parse(text)) == expected
    assert list(problems(text)) == []


odd = st.text("${}[]inputs.x '\"#\\\n", max_size=60)
pieces = st.sampled_from(["{inputs.x}", "{outputs.", "{", "}", "$", "{search_space.a}", "${{inputs.y}}", "{ inputs.z}"])


@given(st.one_of(odd, st.lists(pieces, max_size=8).map("".join)))
def test_any_text_is_taken(text: str) -> None:
    parts = parse(text)
    refs = [part for part in parts if isinstance(part, Ref)]
    assert all(ref.name in written(text, ref.offset) for ref in refs)
    assert [ref[:2] for ref, _ in references(current(text))] == [ref[:2] for ref in refs] or list(problems(text))
    assert [ref for ref, _ in references(text)] == refs
    assert len(list(quotes_at(text, [ref.offset for ref in refs]))) == len(refs)
    list(problems(text))
    render_optional(text, {"x"})


@pytest.mark.parametrize(
    ("text", "present", "rendered"),
    [
        ("a $[[--o ${{inputs.o}}]] b", {"o"}, "a --o ${{inputs.o}} b"),
        ("a $[[--o ${{inputs.o}}]] b", set(), "a  b"),
        ("$[[${{inputs.a}} ${{inputs.b}}]]", {"a"}, ""),
        ("$[[--out ${{outputs.m}}]]", set(), "--out ${{outputs.m}}"),
        ("$[[a]]$[[${{ inputs.x }}]]c", set(), "ac"),
        ("$[[ open", {"x"}, "$[[ open"),
        ("[[ -f x ]] && y", set(), "[[ -f x ]] && y"),
    ],
)
def test_optional_groups(text: str, present: set[str], rendered: str) -> None:
    assert render_optional(text, present) == rendered


def test_references_know_whether_they_are_optional() -> None:
    text = "${{inputs.a}} $[[${{inputs.b}}]] ${{outputs.c}} $[[x]] $[[${{inputs.d}} ]] ${{inputs.e}}"
    assert [(ref.name, optional) for ref, optional in references(text)] == [
        ("a", False),
        ("b", True),
        ("c", False),
        ("d", True),
        ("e", False),
    ]


@pytest.mark.parametrize(
    ("text", "severity", "says"),
    [
        ("${{input.x}}", "error", "did you mean ${{inputs.x}}?"),
        ("${{ output.x }}", "error", "did you mean ${{outputs.x}}?"),
        ("${{foo.x}}", "error", "write ${{inputs.name}}"),
        ("${{inputs}}", "error", "names nothing"),
        ("${{}}", "error", "names nothing"),
        ("${{parent.inputs.x}}", "error", "pipeline or a sweep"),
        ("${{search_space.lr}}", "error", "pipeline or a sweep"),
        ("${{inputs.x", "error", "not closed"),
        ("${{inputs.x}", "error", "not closed"),
        ("$[[--o ${{inputs.x}} ]", "error", "not closed by ']]'"),
        ("{inputs.x}", "warning", "'{inputs.x}' is read as ${{inputs.x}} write ${{inputs.x}}"),
        ("${inputs.x}", "warning", "'${inputs.x}' is read as '$' and ${{inputs.x}} write ${{inputs.x}}"),
        ("{ inputs.x }", "warning", "'{ inputs.x }' is left as it is"),
        ("{inputs.x[0]}", "error", "put a space after '{'"),
        ("{search_space.lr}", "error", "pipeline or a sweep"),
    ],
)
def test_problems(text: str, severity: str, says: str) -> None:
    found = list(problems(f"run {text} --now"))
    assert [problem.severity for problem in found] == [severity]
    assert says in f"{found[0].message} {found[0].fix}"
    assert found[0].text in f"run {text} --now"


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ("X", [""]),
        ("'X'", ["'"]),
        ('"X"', ['"']),
        ("\\'X", [""]),
        ("'a'X\"b\"X", ["", ""]),
        ('"it\'s X"', ['"']),
        ("'say \"X'", ["'"]),
        ('"a\\"X"', ['"']),
        ("# it's\nX", [""]),
        ("a#'X'", ["'"]),
        ("# X 'X\nX", ["", "", ""]),
    ],
)
def test_quotes(text: str, quotes: list[str]) -> None:
    assert list(quotes_at(text, [at for at, char in enumerate(text) if char == "X"])) == quotes


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=12), st.sampled_from(["", "'", '"']))
def test_what_does_not_break_reaches_the_program(value: str, quote: str) -> None:
    """Whatever `breaks` lets pass, a shell's rules leave alone."""
    if not breaks(value, quote):
        assert shlex.split(f"{quote}{value}{quote}") == [value]


@pytest.mark.parametrize(
    "value", ["a", "a b", "$HOME", "a'b", 'a"b', "`id`", "*", "a;b", "", "~", "a\\b", "-5", "é", "a#b"]
)
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_breaks_agrees_with_a_real_shell(value: str, quote: str) -> None:
    if not breaks(value, quote):
        done = subprocess.run(["sh", "-c", f"printf '<%s>' {quote}{value}{quote}"], capture_output=True, check=True)
        assert done.stdout.decode() == f"<{value}>"
    else:
        assert not value.isalnum()


def test_literals_are_text_as_azure_ml_has_it() -> None:
    assert [text_of(value) for value in (True, 0.1, 1e-5, 3, "a b")] == ["True", "0.1", "1e-05", "3", "a b"]
