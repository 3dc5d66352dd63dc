"""What is known of a command from its text alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.job.shell import launcher, scripts, simple_commands


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python train.py --epochs 3", ["train.py"]),
        ("python3.11 -u -W ignore sub/train.py", ["sub/train.py"]),
        ("/usr/bin/python ./train.py", ["./train.py"]),
        ("bash -ex run.sh && python a.py; python b.py", ["run.sh"]),
        ("bash -o pipefail run.sh", ["run.sh"]),
        ("A=1 B='x y' nohup python a.py &", ["a.py"]),
        ("sudo -E bash setup.sh", ["setup.sh"]),
        ("./run.sh --x", ["./run.sh"]),
        ("python --check-hash-based-pycs always -Xdev a.py", ["a.py"]),
        ("python -Wignore -X importtime a.py", ["a.py"]),
        ("python train.py || python nope.py", ["train.py"]),
        ("set -e; export A=1 && ulimit -n 9; echo hi; source x/bin/activate; nvidia-smi; env; python a.py", ["a.py"]),
        ("pip list && python -V && mkdir -p out && python a.py", ["a.py"]),
        ("ls a.py && python 'a'.py", ["a.py"]),
        ("echo hi\n# python no.py\npython a.py", ["a.py"]),
        ("python a.py \\\n  --x 1", ["a.py"]),
        ("(python a.py)", ["a.py"]),
        ("python a.py > log.txt; python b.py", ["a.py"]),
        ("python a.py | tee log", ["a.py"]),
        # what cannot be known
        ("cd sub && python train.py", []),
        ("env --chdir=sub python a.py", []),
        ("pip install . && python build/x.py", []),
        ("python -m pip install x && python made.py", []),
        ("echo 'x' > made.py && python made.py", []),
        ("source ./make.sh && python made.py", []),
        ('echo "$(git clone x)" && python x/a.py', []),
        ("echo $(make) && python made.py", []),
        ("echo `make` && python made.py", []),
        ("true || python no.py", []),
        ("python -h x.py", []),
        ("python -V x.py", []),
        ("bash --version x.sh", []),
        ("git clone x && python x/a.py", []),
        ("curl -O https://x/a.py; python a.py", []),
        ("cat > a.py <<EOF\nprint(1)\nEOF\npython a.py", []),
        ("python $SCRIPT", []),
        ("python ${{inputs.script}}", []),
        ("python *.py", []),
        ("python -m pkg.train a.py", []),
        ("python -c 'import x' a.py", []),
        ("python - a.py", []),
        ("python /opt/a.py", []),
        ("python < a.py", []),
        ("bash -c 'python a.py'", []),
        ("if [ -f a.py ]; then python a.py; fi", []),
        ("torchrun train.py", []),
        ("python", []),
        ("python 'unclosed.py", []),
        ("", []),
    ],
)
def test_scripts(command: str, named: list[str]) -> None:
    assert list(scripts(command)) == named


def test_words_know_where_they_are() -> None:
    text = "ls 'a b' \\\n # no\n/bin/torchrun a.py"
    (_, name), (program, script) = simple_commands(text)
    assert (name, name.offset) == ("a b", text.index("'a b'"))
    assert (program.offset, script.offset) == (text.index("/bin"), text.index("a.py"))
    found = launcher(text)
    assert found is not None
    assert found.offset == text.index("torchrun")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun --nproc_per_node 2 train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python3 -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("/usr/bin/mpirun -n 2 python train.py", "mpirun"),
        ("pip list && mpiexec -n 2 x", "mpiexec"),
        ("NCCL_DEBUG=INFO deepspeed train.py", "deepspeed"),
        ("accelerate launch train.py", "accelerate launch"),
        ("horovodrun -np 2 python x", "horovodrun"),
        ("accelerate config", None),
        ("python train.py --deepspeed", None),
        ("echo torchrun", None),
        ("python -m torch.utils.collect_env", None),
    ],
)
def test_launchers(command: str, found: str | None) -> None:
    assert launcher(command) == found


@given(st.text("ab $'\"\\;&|()<>\n#=-./", max_size=50))
def test_any_text_is_taken(text: str) -> None:
    assert all(simple_commands(text))
    assert all(isinstance(script, str) for script in scripts(text))
    launcher(text)
