"""What mkdocs.yml cannot say by itself; MkDocs calls these functions while it builds the site."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_log = logging.getLogger("mkdocs.hooks.site")
_BOOSTS = {"failures.md": 3, "running.md": 2, "jobs.md": 2}  # where most questions lead
_BEGINS = re.compile(r"- |\* |\d+\. |\|")  # a list or a table


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not written yet; a page that is in no navigation is still a warning."""
    config["nav"] = _written(config["nav"], Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rank pages that explain before references in a search, and separate lists and tables from a paragraph.

    GitHub shows a list or a table that follows a paragraph without a blank line; MkDocs needs the line.
    """
    path = page.file.src_uri
    page.meta.setdefault("search", {"boost": 0.5 if path.startswith("reference/") else _BOOSTS.get(path, 1)})
    lines: list[str] = []
    is_code = is_within = False  # within: a list or a table goes on
    for line in markdown.split("\n"):
        is_code ^= line.lstrip().startswith("```")
        begins = not is_code and _BEGINS.match(line) is not None
        if begins and not is_within and lines and lines[-1]:
            lines.append("")
        is_within = begins or (is_within and bool(line.strip()))
        lines.append(line)
    return "\n".join(lines)


def on_page_content(html: str, **_: Any) -> str:
    """Leave out what mkdocs-click prints for an option without a default."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def _written(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [kept for one in entry if (kept := _written(one, docs)) not in (None, [], {})]
    if isinstance(entry, dict):
        return {title: kept for title, one in entry.items() if (kept := _written(one, docs))}
    if (docs / entry).is_file():
        return entry
    _log.info("not written yet, and so not in the navigation: %s", entry)
    return None
