"""What mkdocs.yml cannot say by itself; MkDocs calls these functions while it builds the site."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

_log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not written yet; a page that is in no navigation is still a warning."""
    config["nav"] = _written(config["nav"], Path(config["docs_dir"]))
    return config


def _written(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [kept for one in entry if (kept := _written(one, docs)) not in (None, [], {})]
    if isinstance(entry, dict):
        return {title: kept for title, one in entry.items() if (kept := _written(one, docs))}
    if (docs / entry).is_file():
        return entry
    _log.info("not written yet, and so not in the navigation: %s", entry)
    return None
