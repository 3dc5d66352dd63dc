"""Writing the run's folder so that a crash at any moment leaves it readable."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict


def append(run_dir: str, event: str, **facts: Any) -> None:
    """Add one event to the run's stream: a single append of a whole line, so that writers never mix."""
    record = {"t": round(facts.pop("t", time.time()), 4), "event": event}
    record.update(facts)
    line = json.dumps(record, separators=(",", ":")) + "\n"
    file = os.open(run_dir + "/events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def write_json(path: str, content: Dict[str, Any]) -> None:
    """Replace a file as a whole: readers see the old or the new one, never a part."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)
