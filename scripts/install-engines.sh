#!/usr/bin/env bash
# Installs the engines that tests start for real and that pip cannot bring: Open MPI's mpirun.
set -euo pipefail

missing=()
command -v mpirun >/dev/null || missing+=(openmpi-bin)
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "install-engines: no apt-get here; install these yourself (Debian's names): ${missing[*]}" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "install-engines: must be root to install ${missing[*]}; run: sudo $0" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
