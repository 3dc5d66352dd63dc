#!/usr/bin/env bash
# Whether the tests marked `parity`, which run peers beside ours, have passed with the present content of the files below.
#   scripts/parity.sh          exit code 0 if they have
#   scripts/parity.sh --note   note that they have; `make parity` does so
set -euo pipefail
cd "$(dirname "$0")/.."

files=(
    jobsdk/compat/torch_distributor.py jobsdk/compat/torch_trainer.py jobsdk/train jobsdk/bootstrap/distributions jobsdk/bootstrap/spec/mlflow_store.py
    jobsdk/bootstrap/launchers/deepspeed.py jobsdk/bootstrap/launchers/deepspeed_tuner.py
    benchmarks/first_step.py benchmarks/restart.py benchmarks/cifar_epoch.py
    tests/spark_parity tests/frameworks/scripts tests/train/scripts
)
mapfile -t -O ${#files[@]} files < <(git grep -lE 'mark\.parity|\bPARITY\b' -- 'tests/*.py')
for file in "${files[@]}"; do [ -e "$file" ] || { echo "scripts/parity.sh: no $file" >&2; exit 2; }; done
now=$(git ls-files -- "${files[@]}" | sort -u | xargs sha256sum | sha256sum | cut -c1-64)
if [ "${1-}" = --note ]; then
    echo "$now" >tests/parity.sha256
else
    [ "$now" = "$(cat tests/parity.sha256 2>/dev/null)" ]
fi
