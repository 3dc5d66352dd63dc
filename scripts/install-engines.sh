#!/usr/bin/env bash
# Installs the engines that tests start for real and that cannot come into .venv with pip. tests/engines.py has the table:
# what each is for, and how it is found. What is there already stays as it is.
# MPICH, Azurite and the image for pods go to .engines, all else comes from Debian.
# PYTHON=python3.12 picks the interpreter of a new environment.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "install-engines: $*" >&2
    exit 1
}

mpich=.engines/mpich
if ! [ -e "$mpich/installed" ]; then
    rm -rf "$mpich" # an earlier attempt that was cut short
    "${PYTHON:-python3}" -m venv "$mpich" || fail "cannot make an environment in $mpich (Debian: apt install python3-venv)"
    "$mpich/bin/python" -m pip install --quiet --disable-pip-version-check 'mpich>=4.3' 'mpi4py>=4.1' 'numpy>=1.26' ||
        fail "pip could not install mpich, mpi4py and numpy into $mpich"
    touch "$mpich/installed"
fi

read -r -a missing <<<"$("${PYTHON:-python3}" tests/engines.py packages)"
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || fail "no apt-get here; install these yourself (Debian's names): ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || fail "must be root to install ${missing[*]}; run: sudo $0"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
azurite=.engines/azurite
if ! [ -x "$azurite/node_modules/.bin/azurite-blob" ]; then
    mkdir -p "$azurite"
    npm install --silent --no-fund --no-audit --prefix "$azurite" azurite@3.35.0 || fail "npm could not install azurite into $azurite"
fi
scripts/containers.sh || fail "the image for pods cannot be made: see scripts/containers.sh"
lacking=$("${PYTHON:-python3}" tests/engines.py missing) || fail "not all engines can be used here: $lacking"
