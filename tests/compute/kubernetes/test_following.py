"""A run that somebody follows: objects by watch, logs as streams, and whatever a server does in the meantime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import following, watches
from jobsdk.compute.kubernetes import pods as pod_states
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.errors import ComputeError
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.pods import NAME, Pods
from tests.compute.kubernetes.server import ApiServer

Submit = Callable[..., Run]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.05, 0.2))
    monkeypatch.setattr(watches, "_SHORTEST_S", 0.05)
    monkeypatch.setattr(following, "_AGAIN_S", 0.05)


def log_of(run: Run, rank: int) -> bytes:
    """What has come of a rank's log; one rank a node."""
    path = run.folder.logs / f"node-{rank}/rank-{rank}.log"
    return path.read_bytes() if path.exists() else b""


def asked(server: ApiServer, part: str) -> list[str]:
    return [one for one in server.requests if part in one]


def names_of_logs(server: ApiServer) -> set[str]:
    return {one.split("/pods/")[1].split("/")[0] for one in asked(server, "/log?")}


@pytest.fixture
def run(submit: Submit, pods: Pods) -> Run:
    found = submit(instance_count=3)
    pods.runs(0, 1, 2)
    pods.event({"t": 1.5, "event": "started"})
    for node in range(3):
        pods.writes(node, f"rank-{node}", b"one\n")
    return found


@pytest.fixture
def followed(run: Run) -> Iterator[Callable[[], None]]:
    """All ranks are followed, and their first lines are there."""
    with run.target.following(run.folder, View()) as check:
        wait_for(lambda: [log_of(run, rank) for rank in range(3)] == [b"one\n"] * 3)
        yield check


def says_again(run: Run, pods: Pods, node: int = 1) -> None:
    """The next line of a rank comes."""
    before = log_of(run, node)
    pods.writes(node, f"rank-{node}", b"more\n", len(before))
    wait_for(lambda: log_of(run, node) == before + b"more\n")


def test_nothing_is_asked_while_nothing_happens(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    for node in range(3):
        says_again(run, pods, node)
    assert len(asked(server, "watch=true")) == 2
    assert len(asked(server, "GET /api/v1/namespaces/jobs/pods?labelSelector")) == 2  # a list, then a watch
    assert all("follow=true" in one for one in asked(server, "/log?"))
    assert len(asked(server, "/log?")) == 3


def test_only_the_logs_of_chosen_ranks_and_of_node_0_are_read(run: Run, server: ApiServer, pods: Pods) -> None:
    with run.target.following(run.folder, View(ranks="2")):
        wait_for(lambda: log_of(run, 2) == b"one\n")
        says_again(run, pods, 0)
    assert names_of_logs(server) == {f"{NAME}-{node}-abcde" for node in (0, 2)}


def test_logs_that_are_not_followed_are_read_where_they_are_asked_for(run: Run, server: ApiServer) -> None:
    run.logs(ranks="2")
    assert names_of_logs(server) == {f"{NAME}-{node}-abcde" for node in (0, 2)}
    run.logs()
    assert names_of_logs(server) == {f"{NAME}-{node}-abcde" for node in range(3)}


def test_who_waits_reads_node_0_and_at_the_end_all(run: Run, server: ApiServer, pods: Pods) -> None:
    assert run.status == "Running"
    with run.target.following(run.folder, None):
        says_again(run, pods, 0)
        assert names_of_logs(server) == {f"{NAME}-0-abcde"}
        pods.finish()
        for node in range(3):
            pods.ends(node, 0)
        wait_for(lambda: run.folder.recorded_state().is_terminal)
    assert run.status == "Completed"
    assert [log_of(run, rank) for rank in (1, 2)] == [b"one\n"] * 2


def test_a_follower_shows_lines_and_ends_with_the_run(run: Run, pods: Pods, tmp_path: Path) -> None:
    shown = tmp_path / "shown"

    def end() -> None:
        wait_for(lambda: shown.exists() and b"[rank 1] one\n" in shown.read_bytes())
        pods.finish()
        for node in range(3):
            pods.ends(node, 0)

    other = threading.Thread(target=end)
    other.start()
    with shown.open("wb") as out:
        state = run.target.logs(run.folder, out, View(), follow=True)
    other.join()
    assert (state.status, state.exit_code) == ("Completed", 0)
    assert b"[rank 2] one\n" in shown.read_bytes()


def test_last_lines_that_come_after_the_end_of_their_container_are_read(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    late = pods.late(0, 1, 2)
    pods.writes(1, "rank-1", b"two\n", 4)
    pods.finish()
    for node in range(3):
        pods.ends(node, 0)
    last = [f"/{NAME}-{node}-abcde/log?container=main&timestamps=true" for node in range(3)]
    wait_for(lambda: all(any("follow" not in one for one in asked(server, log)) for log in last))
    late()
    wait_for(lambda: run.folder.recorded_state().is_terminal)
    assert (run.status, run.report["message"]) == ("Completed", "it has ended")
    assert log_of(run, 1) == b"one\ntwo\n"


def test_a_pod_that_comes_later_is_followed(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    pods.ends(2, 143)
    server.store.delete("Pod", "jobs", f"{NAME}-2-abcde")
    pods.runs(2)  # another log of the same name
    pods.state(pods.add(2, f"{NAME}-2-fghij"), {"running": {}}, phase="Running")
    pods._logs[f"{NAME}-2-fghij"] = b"2026-01-02T04:00:00Z stdout F rank-2:4| again\n"
    wait_for(lambda: log_of(run, 2) == b"one\nagain\n")


# -- what a server does ------------------------------------------------------------------------------------------------


def test_a_watch_that_was_closed_goes_on_where_it_was(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    server.requests.clear()
    server.hang_up()
    wait_for(lambda: len(asked(server, "watch=true")) == 2)
    says_again(run, pods)
    assert not asked(server, "limit="), "the pods were not listed again"


def test_a_version_that_is_too_old_is_followed_by_a_list(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    server.requests.clear()
    server.store.create("jobs", {"kind": "Event", "metadata": {"name": "of-others"}})
    server.store.compact()
    server.hang_up()
    wait_for(lambda: asked(server, "limit="))
    pods.runs(7)
    wait_for(lambda: len(asked(server, f"/{NAME}-7-abcde/log?")) == 1)
    assert followed() is None


def test_bookmarks_keep_the_version_young(run: Run, server: ApiServer) -> None:
    server.bookmark_s = 0.1
    with run.target.following(run.folder, View()):
        wait_for(lambda: len(asked(server, "watch=true")) == 2)
        server.store.create("jobs", {"kind": "Event", "metadata": {"name": "of-others"}})
        revision = server.store.revision
        wait_for(lambda: server.bookmarks.count(revision) == 2)
        server.store.compact()
        server.requests.clear()
        server.hang_up()
        wait_for(lambda: len(asked(server, f"resourceVersion={revision}&")) == 2)
    assert not asked(server, "limit=")


def test_without_the_right_to_watch_the_pods_are_listed_again(
    run: Run, server: ApiServer, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "_POLL_S", 0.1)
    server.forbidden |= {"watch pods", "watch jobs"}
    with run.target.following(run.folder, View()) as check:
        says_again(run, pods) if log_of(run, 1) else wait_for(lambda: log_of(run, 1) == b"one\n")
        pods.runs(7)
        wait_for(lambda: asked(server, f"/{NAME}-7-abcde/log?"))
        check()
    assert len(asked(server, "watch=true")) == 2


@pytest.mark.parametrize("fault", ["watch=true", "/log[?]"])
def test_a_busy_server_is_asked_again_after_the_time_that_it_says(
    fault: str, run: Run, server: ApiServer, pods: Pods
) -> None:
    server.fail(fault, 429, "TooManyRequests", times=2)
    with run.target.following(run.folder, View()) as check:
        wait_for(lambda: [log_of(run, rank) for rank in range(3)] == [b"one\n"] * 3)
        pods.runs(7)
        wait_for(lambda: asked(server, f"/{NAME}-7-abcde/log?"))
        check()


def test_a_server_that_restarts_is_said_and_followed_again(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    server.stop()
    wait_for(lambda: raises(followed, "cannot be reached"))
    server.start()
    says_again(run, pods)
    pods.runs(7)
    wait_for(lambda: asked(server, f"/{NAME}-7-abcde/log?"))
    wait_for(lambda: not raises(followed, ""))


def test_a_token_that_has_expired_is_said_and_a_new_one_taken(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods, configure: Configure
) -> None:
    server.token = "the-next"
    server.hang_up()
    wait_for(lambda: raises(followed, "answers 401: Unauthorized. Fix: log in again"))
    configure(server, token="the-next")
    says_again(run, pods)
    wait_for(lambda: not raises(followed, ""))


def test_a_kubelet_that_does_not_answer_is_said_and_the_others_are_read(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    server.fail(f"{NAME}-1-abcde/log", 500, "InternalError", times=1000)
    server.hang_up()
    wait_for(lambda: raises(followed, rf"the output of node 1 (pod {NAME}-1-abcde) cannot be read now: "))
    says_again(run, pods, 2)
    server.faults.clear()
    says_again(run, pods, 1)
    wait_for(lambda: not raises(followed, ""))


def test_a_pod_that_is_deleted_while_its_log_is_read_is_said(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    server.store.delete("Pod", "jobs", f"{NAME}-1-abcde")
    server.log_written.wake_all()
    wait_for(lambda: warnings(run))
    assert warnings(run) == [f"the pod of node 1 (pod {NAME}-1-abcde) was deleted: its last lines may be missing"]
    says_again(run, pods, 2)


def test_a_pod_that_ended_before_it_was_deleted_is_not_missed(
    run: Run, followed: Callable[[], None], server: ApiServer, pods: Pods
) -> None:
    pods.ends(1, 143)
    wait_for(lambda: asked(server, f"{NAME}-1-abcde/log?")[1:])
    server.store.delete("Pod", "jobs", f"{NAME}-1-abcde")
    says_again(run, pods, 2)
    assert warnings(run) == []


def test_a_log_that_comes_slowly_holds_up_no_other(run: Run, server: ApiServer, pods: Pods) -> None:
    slow, logs = threading.Event(), server.logs

    def late(pod: str) -> bytes | None:
        if pod == f"{NAME}-1-abcde":
            assert slow.wait(200)
        return logs(pod)

    server.logs = late
    with run.target.following(run.folder, View()):
        wait_for(lambda: log_of(run, 2) == b"one\n")
        says_again(run, pods, 2)
        assert log_of(run, 1) == b""
        slow.set()
        wait_for(lambda: log_of(run, 1) == b"one\n")


def test_the_last_words_of_a_container_are_kept_until_it_has_ended(
    run: Run, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_states, "LATE_S", 0.0)
    for node in range(3):
        pods._logs[f"{NAME}-{node}-abcde"] += b"2026-01-02T03:00:00Z stderr F exec: python3: not found\n"
        assert run.status == "Running"
    for node in range(3):
        pods.ends(node, 127)
    assert run.status == "Failed"
    assert run.report["message"].endswith("ended with code 127: exec: python3: not found")


def test_more_logs_than_files_may_be_open_are_read_in_turn(
    run: Run, server: ApiServer, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "most_streams", lambda: 2)
    monkeypatch.setattr(following, "_TURN_S", 0.1)
    with run.target.following(run.folder, View()):
        wait_for(lambda: [log_of(run, rank) for rank in range(3)] == [b"one\n"] * 3)
        for node in range(3):
            says_again(run, pods, node)
    assert len({one for one in asked(server, "/log?") if "follow=true" in one}) == 2


def test_who_no_longer_looks_costs_nothing_and_may_come_back(
    run: Run, server: ApiServer, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LEASE_S", 0.1)
    with run.target.following(run.folder, View()) as check:
        thread = next(one for one in threading.enumerate() if one.name == f"jobsdk-{run.name}")
        thread.join(20)
        assert not thread.is_alive()
        monkeypatch.setattr(following, "_LEASE_S", 100.0)
        check()
        says_again(run, pods) if log_of(run, 1) else wait_for(lambda: log_of(run, 1) == b"one\n")


def test_check_says_how_runs_are_followed(server: ApiServer, configure: Configure) -> None:
    configure(server)

    def said() -> str:
        *_, check, _ = computes.resolve("cluster").check()
        assert (check.what, check.is_well) == ("following", True)
        return check.found

    assert said() == "changes of a run come by watch"
    server.forbidden.add("watch pods")
    assert said() == "without the right to watch pods jobsdk asks every few seconds"


def test_silence_counts_only_ranks_whose_logs_are_read(run: Run, pods: Pods) -> None:
    from jobsdk.runs import silence
    from jobsdk.runs.ranks import RankState

    for node in range(3):
        pods.writes(node, f"times-{node}", b"%d 4\n" % (1000 * (node + 1)))
    run.logs()
    states = [RankState(rank, rank, 0, "", None, None, "running", None, None) for rank in range(3)]
    assert silence.last_outputs(run.folder, states, 0) == {0: 1000.0, 1: 2000.0, 2: 3000.0}
    assert run.status == "Running"
    assert silence.last_outputs(run.folder, states, 0) == {0: 1000.0}


def warnings(run: Run) -> list[str]:
    return [one["message"] for one in run.folder.events() if one["event"] == "warning"]


def raises(check: Callable[[], None], words: str) -> bool:
    try:
        check()
    except ComputeError as error:
        return words in str(error)
    return False
