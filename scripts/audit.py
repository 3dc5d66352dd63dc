"""`make audit`: bandit judges the package's code, pip-audit the packages that are installed beside it.

What bandit finds is mended, or explained where it stands: `# nosec B310 # http and https only`. An exception without a
reason, or one that nothing needs, is an error; pyproject.toml says which kinds are not looked for, and why.

pip-audit asks PyPI which versions are vulnerable. A network may have a package index without that service: then nothing
can be said of the packages, which is printed; `--require-service` makes it an error. What remains is `pip check`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
_EXCEPTION = re.compile(r"#\s*nosec\b:?\s*([^#\n]*)(?:#\s*(.*))?")
#: Vulnerabilities that do not concern jobsdk: their ids, each with the reason.
ACCEPTED: Mapping[str, str] = {}


def of_code(package: Path, config: Path) -> Iterator[str]:
    """What is wrong in the code of a package: findings without an exception, exceptions without a finding or reason."""
    argv = [
        sys.executable,
        "-m",
        "bandit",
        "--quiet",
        "--configfile",
        config,
        "--recursive",
        package,
        "--format",
        "json",
    ]
    done = subprocess.run([*argv, "--ignore-nosec"], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"bandit cannot be run:\n{done.stderr}") from None
    for error in answer["errors"]:
        yield f"{error['filename']}: {error['reason']}"
    excepted = dict(_exceptions(package))
    needed = set()
    for one in answer["results"]:
        place = (one["filename"], one["line_number"])
        ids, _ = excepted.get(place, ((), ""))
        if one["test_id"] in ids:
            needed.add((place, one["test_id"]))
        else:
            yield f"{place[0]}:{place[1]}: {one['test_id']} {one['issue_text']} See {one['more_info']}"
    for place, (ids, why) in excepted.items():
        where = f"{place[0]}:{place[1]}"
        if not ids:
            yield f"{where}: nosec names no finding. Fix: write `# nosec Bxxx # why`"
        if not why.strip():
            yield f"{where}: nosec has no reason. Fix: write `# nosec Bxxx # why`"
        yield from (f"{where}: nothing needs nosec {one}. Fix: remove it" for one in ids if (place, one) not in needed)


def _exceptions(package: Path) -> Iterator[tuple[tuple[str, int], tuple[list[str], str]]]:
    """(file, line) -> (ids of findings, reason)."""
    for file in sorted(package.rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if found := _EXCEPTION.search(line):
                yield (str(file), number), (re.findall(r"B\d+", found[1]), found[2] or "")


def of_packages(answer: Mapping[str, Any], accepted: Mapping[str, str] = ACCEPTED) -> tuple[list[str], int, int]:
    """From pip-audit's answer: what is vulnerable, how many packages were judged, and how many could not be."""
    wrong, judged, unknown = [], 0, 0
    for package in answer["dependencies"]:
        if "skip_reason" in package:
            unknown += 1
            continue
        judged += 1
        for one in package["vulns"]:
            if one["id"] not in accepted:
                fixed = ", ".join(one["fix_versions"]) or "no version yet"
                wrong.append(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    return wrong, judged, unknown


def _ask_pip_audit() -> tuple[list[str], int, int]:
    argv = [
        sys.executable,
        "-m",
        "pip_audit",
        "--local",
        "--skip-editable",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        return of_packages(json.loads(done.stdout))
    except ValueError:
        print(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip-audit said nothing", file=sys.stderr
        )
        return [], 0, 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge the code and the packages that it uses.")
    parser.add_argument("--require-service", action="store_true", help="fail where pip-audit can judge no package")
    options = parser.parse_args()
    wrong = list(of_code(REPOSITORY / "jobsdk", REPOSITORY / "pyproject.toml"))
    vulnerable, judged, unknown = _ask_pip_audit()
    wrong += vulnerable
    if not judged:
        text = f"pip-audit could judge none of the {unknown} packages: the package index here knows no vulnerabilities"
        if options.require_service:
            wrong.append(text)
        else:
            print(f"note: {text}")
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    if check.returncode:
        print(f"note: pip check says:\n{check.stdout.strip()}")
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"audit: {len(wrong)} problem(s); {judged} packages judged, {unknown} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
