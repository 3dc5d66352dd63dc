#!/usr/bin/env bash
# The image in which tests run the pods of Kubernetes jobs: Debian's least, with Python and no ssh.
# It is made once (40 s) and kept in .engines/node-image.tar; podman gets it from there. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

image=localhost/jobsdk-node:1
kept=.engines/node-image.tar
if ! [ -e "$kept" ]; then
    mkdir -p .engines
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=python3 bookworm "$root" >"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        exit 1
    }
    rm -f "$root.log"
    tar -C "$root" --exclude './var/cache/apt/*' --exclude './var/lib/apt/lists/*' -c . >"$kept.part"
    mv "$kept.part" "$kept"
fi
podman image exists "$image" 2>/dev/null ||
    podman import --quiet --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' "$kept" "$image" >/dev/null
