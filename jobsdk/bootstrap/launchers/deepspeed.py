"""DeepSpeed's own launcher, and how DeepSpeed's configuration is read."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Match, Optional, Tuple

from ..spec import facts as facts_
from ..spec import paths
from . import base

#: A string, which is kept, or a comment or a comma that Hjson allows and JSON does not.
_TEXT_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_TEXT_OR_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


class DeepSpeedLauncher(base.Launcher):
    """One `deepspeed --no_ssh` on each node starts the ranks of that node."""

    is_direct = False

    def command(self, facts: facts_.Facts) -> Optional[Tuple[List[str], Dict[str, str]]]:
        program = base.find("deepspeed")
        if program is None:
            raise FileNotFoundError("no deepspeed on PATH: pip install deepspeed, or set launcher: direct")
        argv = [program, "--hostfile", paths.hostfile(facts.run_dir), "--no_ssh", "--node_rank", str(self.node_rank)]
        argv += ["--master_addr", facts.addresses[0], "--master_port", str(facts.ports[0][0])]
        return [*argv, "--no_python", "--no_local_rank", *base.rank_argv()], {}


def parse_config(text: str) -> Dict[str, Any]:
    """DeepSpeed's configuration. Raises ValueError, which says where, if it cannot be read.

    As DeepSpeed does, it takes comments and a comma after the last entry, and no key twice.
    """
    for extra in (_TEXT_OR_COMMENT, _TEXT_OR_LAST_COMMA):
        text = extra.sub(_blank, text)
    content = json.loads(text, object_pairs_hook=_each_once)
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    return content


def _blank(found: Match[str]) -> str:
    """Spaces in the place of what is left out, so that errors name the right line and column."""
    return found[1] or re.sub(r"[^\n]", " ", found[0])


def _each_once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    content: Dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError("the key %r stands in it twice" % key)
        content[key] = value
    return content
