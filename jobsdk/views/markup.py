"""HTML made of parts: whatever is put in is text, unless it is markup that was made here."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar

from jobsdk.bootstrap.failures.tracebacks import plain

#: What all text goes through before it becomes HTML.
_mask: ContextVar[Callable[[str], str]] = ContextVar("mask", default=str)


@contextlib.contextmanager
def masked(mask: Callable[[str], str]) -> Iterator[None]:
    """All HTML that is made inside holds text as `mask` gives it."""
    before = _mask.set(mask)
    try:
        yield
    finally:
        _mask.reset(before)


class Markup(str):
    """A piece of HTML that is safe to be put into another."""


def text(value: object) -> Markup:
    """Anything as text that can be written as UTF-8, without control characters and what turns text around."""
    if isinstance(value, Markup):
        return value
    said = str(value).encode("utf-8", "replace").decode()
    return Markup(html.escape(_mask.get()(plain(said)), quote=True))


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """An element. `class_` is the attribute class, other `_` become `-`; one that is None or False is left out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{text(value)}"')
    return Markup(f"<{' '.join(words)}>{joined(content)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(text(part) for part in parts if part is not None))


_LIGHT = """--fg: #1b1f24; --dim: #59636e; --bg: #fff; --box: #f6f8fa; --line: #d1d9e0; --completed: #1a7f37;
  --failed: #cf222e; --lost: #8250df; --stopped: #bc4c00; --running: #0969da; --waiting: #59636e; --on: #fff;"""
_DARK = """--fg: #e6edf3; --dim: #9198a1; --bg: #0d1117; --box: #151b23; --line: #3d444d; --completed: #3fb950;
  --failed: #f85149; --lost: #ab7df8; --stopped: #db6d28; --running: #4493f8; --waiting: #818b98; --on: #0d1117;"""

#: The parts that pages and cards have in common.
_PARTS = """
code, pre, .mono { font: 13px/1.45 ui-monospace, monospace; }
pre { color: var(--fg); background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .7rem;
  margin: .4rem 0; overflow: auto; max-height: 32rem; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top;
  overflow-wrap: anywhere; } tr, th, td { background: none; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
.wide { overflow-x: auto; } .wide td { white-space: nowrap; }
.badge { color: var(--on); border-radius: 1rem; padding: .1rem .7rem; font-size: .85rem; background: var(--waiting); }
.card { border-left: 4px solid var(--failed); } .dim { color: var(--dim); }
.warning { color: var(--stopped); } .error { color: var(--failed); }
.grid { display: flex; flex-wrap: wrap; gap: .25rem .9rem; } .node { display: flex; gap: 3px; align-items: center;
  flex-wrap: wrap; } .node > span { color: var(--dim); font-size: .8rem; margin-right: .2rem; }
.cell { min-width: 1.6rem; height: 1.6rem; border-radius: 4px; color: var(--on); font-size: .75rem; line-height: 1.6rem;
  text-align: center; background: var(--waiting); }
.completed { background: var(--completed); } .failed { background: var(--failed); } .lost { background: var(--lost); }
.stopped { background: var(--stopped); } .running { background: var(--running); }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
svg .dim { fill: var(--dim); } svg .line { fill: none; stroke: var(--running); stroke-width: 1.5; }
svg .axis { stroke: var(--line); } svg .dot { stroke-width: 7; stroke-linecap: round; }
svg rect { fill: var(--running); } svg rect.unattributed { fill: var(--waiting); }
.wide { overflow-x: auto; } .wide svg { max-width: none; }
details > summary { cursor: pointer; margin: .3rem 0; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
.bar { background: var(--line); border-radius: 4px; height: .5rem; max-width: 24rem; overflow: hidden; }
.bar > div { background: var(--running); height: 100%; }
"""

#: Of a page of our own.
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); margin: 0 auto;
  max-width: 72rem; padding: 1rem; }}
h1 {{ font-size: 1.4rem; margin: .2rem 0; }} h2 {{ font-size: 1.05rem; margin: 1.6rem 0 .5rem; }}
{_PARTS}"""

#: Of a card within a page of somebody else: a notebook, whose own theme says whether it is dark. The name is said three
#: times so that it counts for more than what JupyterLab says of all tables.
CARD_STYLE = f"""
.jobsdk.jobsdk.jobsdk {{ {_LIGHT} font: 14px/1.5 system-ui, sans-serif; color: var(--fg); border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem .9rem; margin: .2rem 0; background: var(--bg); max-width: 60rem; {_PARTS} }}
[data-jp-theme-light="false"] .jobsdk.jobsdk.jobsdk, .vscode-dark .jobsdk.jobsdk.jobsdk,
.vscode-high-contrast .jobsdk.jobsdk.jobsdk, html[theme="dark"] .jobsdk.jobsdk.jobsdk {{ {_DARK} }}
@media (prefers-color-scheme: dark) {{
  body:not([data-jp-theme-light]):not(.vscode-light) .jobsdk.jobsdk.jobsdk {{ {_DARK} }} }}
"""


def card(*content: object) -> Markup:
    """A card for a notebook's page."""
    return tag("div", tag("style", Markup(CARD_STYLE)), *content, class_="jobsdk")


def facts(values: Mapping[str, object]) -> Markup:
    """A table of names and values, without those that say nothing."""
    rows = (tag("tr", tag("th", name), tag("td", value)) for name, value in values.items() if value not in (None, ""))
    return tag("table", *rows)
