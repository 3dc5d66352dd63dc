#!/usr/bin/env bash
# Runs tests where no engine of tests/engines.py can be found: PATH leads to Python, git, a shell and the coreutils only.
# Every test with an engine must be skipped, no other test may be, and none may fail.
# Arguments go to pytest; VENV is the environment that `make check` made.
set -euo pipefail
cd "$(dirname "$0")/.."

bare=$(mktemp -d)
chmod 755 "$bare" # tests look for programs as other users too
trap 'rm -rf "$bare"' EXIT
link() {
    local program path
    for program in "$@"; do
        path=$(type -P "$program") || continue # macOS lacks some
        ln -s "$path" "$bare/$program"
    done
}
link sh bash dash git python3 make grep sed gawk awk mawk tar gzip find xargs ps hostname setsid flock mount umount unshare nsenter
while read -r program; do link "${program##*/}"; done < <(dpkg --listfiles coreutils | grep -E '^(/usr)?/bin/[a-z]')

export JOBSDK_WITHOUT_ENGINES=1 JOBSDK_ENGINES="$bare/none" PATH="$bare" PYTHONDONTWRITEBYTECODE=
unset JOBSDK_REQUIRE_ENGINES JAVA_HOME
"${VENV:-.venv}/bin/python" -m pytest "$@"
