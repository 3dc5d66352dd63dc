"""Starting a run on plain machines: all are asked first, and either all of them start or nothing is left on any."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.bootstrap.agent import ssh_host as far_host
from jobsdk.bootstrap.spec import variables
from jobsdk.bootstrap.transport import ssh_files
from jobsdk.compute.hosts.remote import RemoteHost, each
from jobsdk.compute.shipping import parcel
from jobsdk.compute.ssh.hosts import Entry, addresses, ask
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.runs.folder import RunFolder

#: Bytes that must be free for the run's folder, beside its code: logs, and small outputs.
_ROOM = 100 << 20
#: In the run's folder here: where each node is.
MEMBERS = "nodes.json"


class Member(NamedTuple):
    """One node of a run, and its machine. `leader` is the first node that has the same folder, maybe itself."""

    rank: int
    entry: Entry
    host: RemoteHost
    run_dir: str
    leader: int

    def to_dict(self) -> dict[str, Any]:
        return {"host": self.entry.host, "run_dir": self.run_dir, "leader": self.leader}


class Start:
    """Brings one run up on `hosts`. `spec` is what the compute has compiled."""

    def __init__(self, spec: Mapping[str, Any], run: RunFolder, hosts: Sequence[tuple[Entry, RemoteHost]]) -> None:
        self._spec = spec
        self._run = run
        self._hosts = hosts
        self._answers: list[dict[str, Any]] = []
        self._members: list[Member] = []

    def all(self) -> None:
        """Start everywhere. Raises ComputeError that names every machine that is to blame; nothing is left then."""
        self._ask_all()
        code, digest = self._spec["code"], ""
        if code is not None:
            from jobsdk.snapshot import copy

            digest = copy.fingerprint(Path(code))
        try:
            self._find_leaders()
            places = self._send(code, digest)
            self._run.write_json(MEMBERS, {"nodes": [one.to_dict() for one in self._members]})
            self._start_all(places)
        except BaseException:
            self._clean_up()
            raise

    def _ask_all(self) -> None:
        spec = self._spec

        def probe(index: int) -> dict[str, Any]:
            entry, host = self._hosts[index]
            given = {"folder": spec["folder"], "run": spec["run"], "gpus": entry.gpus, "count": spec["gpus"]}
            answer: dict[str, Any] = ask(host, "probe", None, **given)
            return answer

        answers = each(range(len(self._hosts)), probe)
        problems = [self._problem(index, answer, answers[:index]) for index, answer in enumerate(answers)]
        self._raise([problem for problem in problems if problem], "cannot take the job; nothing was started")
        self._answers = answers

    def _problem(self, index: int, answer: Any, others: Sequence[Any]) -> str | None:
        entry, _ = self._hosts[index]
        if isinstance(answer, JobsdkError):
            return str(answer)
        for other, known in enumerate(others):
            if isinstance(known, dict) and known["machine"] == answer["machine"]:
                mine, its = entry.gpus, self._hosts[other][0].gpus
                if mine is None or its is None or set(mine) & set(its):
                    return f"{entry.host}: it is the same machine as {self._hosts[other][0].host}"
        if not answer["writable"]:
            return f"{entry.host}: {answer['existing']} cannot be written to. Fix: set another `folder`"
        if not answer["is_new"]:
            return f"{entry.host}: {answer['run_dir']} is there already. Fix: give the job another name"
        if answer["free"] < _ROOM:
            free, needed = answer["free"] >> 20, _ROOM >> 20
            return f"{entry.host}: {free} MiB are free at {answer['existing']}, and {needed} MiB are needed"
        if answer["in_use"]:
            return f"{entry.host}: {answer['in_use']}"
        return None

    def _find_leaders(self) -> None:
        """Make the run's folders, and find out by a mark of each node which of them are one folder."""
        self._members = [
            Member(rank, entry, host, answer["run_dir"], rank)
            for rank, ((entry, host), answer) in enumerate(zip(self._hosts, self._answers, strict=True))
        ]
        self._all_of(lambda one: one.host.write(one.run_dir, {f"nodes/{one.rank}": b""}), self._members)
        if len(self._members) > 1:
            seen = self._all_of(lambda one: one.host.call(ssh_files, "marks", one.run_dir), self._members)
            self._members = [one._replace(leader=min(marks)) for one, marks in zip(self._members, seen, strict=True)]

    def _send(self, code: str | None, digest: str) -> dict[int, str]:
        """Bring the code and the parcel to each folder; where the code is, by leader."""
        leaders = [one for one in self._members if one.leader == one.rank]
        content = parcel.make(self._run)

        def send(one: Member) -> str:
            place = ""
            if code is not None:
                store = f"{self._answers[one.rank]['folder']}/code"
                place = one.host.send_code(Path(code), digest, store)
            one.host.write(one.run_dir, content.files, private=content.private)
            return place

        return {one.leader: place for one, place in zip(leaders, self._all_of(send, leaders), strict=True)}

    def _start_all(self, places: Mapping[int, str]) -> None:
        first = self._members[0]
        known = ",".join(addresses(first.entry, first.host, self._answers[0]))
        shared = {
            variables.CONTROL: f"{known} {','.join(map(str, self._spec['ports']))}",
            "JOBSDK_HOSTS": ",".join(one.entry.host for one in self._members),
        }
        note = {"run": self._run.name, "user": getpass.getuser()}

        def start(one: Member) -> dict[str, Any]:
            environment = {**shared, "JOBSDK_NODE_RANK": str(one.rank)}
            if places[one.leader]:
                environment[variables.CODE] = places[one.leader]
            if all(other.leader != one.leader for other in self._members if other.rank != one.rank):
                environment[far_host.OWN_FOLDER] = "1"
            argv = parcel.command(self._spec["python"], one.run_dir, "host", "node", one.run_dir)
            answer: dict[str, Any] = ask(
                one.host, "start", one.run_dir, rank=one.rank, argv=argv, environment=environment,
                setup=self._spec["setup"], gpus=one.entry.gpus, count=self._spec["gpus"], note=note,
            )  # fmt: skip
            return answer

        started = self._all_of(start, self._members)
        gpus = {one.entry.host: answer["gpus"] for one, answer in zip(self._members, started, strict=True)}
        self._run.append_event("allocated", hosts=[one.entry.host for one in self._members], gpus=gpus)

    def _clean_up(self) -> None:
        def clean(one: Member) -> None:
            try:
                ask(one.host, "cancel", one.run_dir, ranks=[one.rank])
                ask(one.host, "sweep", one.run_dir)
            except ComputeError:
                pass  # it has no bootstrap, or cannot be reached any more
            one.host.call(ssh_files, "forget", one.run_dir)

        each(self._members, clean)

    def _all_of(self, do: Callable[[Member], Any], members: Sequence[Member]) -> list[Any]:
        results = each(members, do)
        self._raise([str(one) for one in results if isinstance(one, JobsdkError)], "failed; nothing was left running")
        return results

    def _raise(self, problems: Sequence[str], what: str) -> None:
        if problems:
            some = f"{len(problems)} of {len(self._hosts)} hosts {what}"
            raise ComputeError(f"compute {self._spec['compute']}: {some}:" + "".join(f"\n  {one}" for one in problems))


def clock_difference(said: Mapping[str, Any], asked: float, answered: float) -> float:
    """Seconds by which a machine's clock is ahead of ours, at least: it was read at some time between the two."""
    clock = float(said["clock"])
    return clock - max(asked, min(clock, answered))
