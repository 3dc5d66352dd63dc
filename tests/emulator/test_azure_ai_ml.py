"""The unmodified azure-ai-ml client against the emulator: what its users do with command jobs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from jobsdk.emulator.process import Running
from tests.bootstrap.runs import wait_for
from tests.emulator.emulated import management, names, processes_with, use

#: Every process keeps what it finds in its environment, and says something.
TELL = """
import json, os, sys, time
while "WAIT_FOR" in os.environ and not os.path.exists(os.environ["WAIT_FOR"]):
    time.sleep(0.05)
print("process", os.environ["AZUREML_PROCESS_NAME"], *sys.argv[1:], flush=True)
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["AZUREML_CR_NODE_RANK"]
path = os.path.join(os.environ["AZURE_ML_OUTPUT_told"], rank + ".json")
with open(path, "w") as file:
    json.dump(dict(os.environ), file)
with open("outputs/" + rank + ".txt", "w") as file:
    file.write("an artifact")
"""


def job(command: str, **more: Any) -> Any:
    from azure.ai.ml import command as make
    from azure.ai.ml.entities import Environment

    return make(**{"command": command, "environment": Environment(image="ubuntu"), "compute": "cluster", **more})


def ended(client: Any, name: str) -> str:
    """How a job has ended."""

    def status() -> str | None:
        found = str(getattr(client.jobs.get(name).status, "value", client.jobs.get(name).status))
        return found if found in ("Completed", "Failed", "Canceled") else None

    return wait_for(status, 120)


def telling(folder: Path, command: str = "python tell.py", **more: Any) -> Any:
    from azure.ai.ml import Output

    folder.mkdir()
    (folder / "tell.py").write_text(TELL)
    return job(command, code=str(folder), outputs={"told": Output(type="uri_folder")}, **more)


def told(client: Any, name: str, folder: Path) -> list[dict[str, str]]:
    """The environments of a job's processes, by rank."""
    client.jobs.download(name, download_path=str(folder), output_name="told")
    files = sorted((folder / "named-outputs/told").iterdir())
    assert [file.stem for file in files] == [str(rank) for rank in range(len(files))]
    return [json.loads(file.read_text()) for file in files]


def test_a_job_from_submission_to_download(
    client: Any, azure: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from azure.ai.ml import Input, PyTorchDistribution

    (tmp_path / "data.csv").write_text("1,2")
    inputs = {"data": Input(type="uri_file", path=str(tmp_path / "data.csv")), "epochs": 3}
    given = telling(
        tmp_path / "code", "python tell.py ${{inputs.epochs}} $(cat ${{inputs.data}}) $MINE", inputs=inputs,
        instance_count=2, distribution=PyTorchDistribution(process_count_per_instance=2),
        environment_variables={
            "MINE": "yes", "RANK": "99", "JOBSDK_OF_MINE": "kept", "WAIT_FOR": str(tmp_path / "go"),
        }, experiment_name="first",
    )  # fmt: skip
    azure.forget_requests()
    run = client.jobs.create_or_update(given)
    asked = [line.rpartition("/workspaces/")[2].partition("/")[2] for line in management(azure)]
    assert [line.partition("/")[0] for line in asked] == [
        *("codes", "codes", "codes"), "environments", "datastores", "datastores", "jobs",
    ]  # fmt: skip
    assert run.studio_url.count("tid=") == 1
    assert run.experiment_name == "first"

    def go() -> None:  # azure-ai-ml shows nothing of a job that has ended before it begins to look
        wait_for(lambda: any(one["path"].partition("?")[0].endswith("/details") for one in azure.requests()), 120)
        (tmp_path / "go").touch()

    watching = threading.Thread(target=go)
    watching.start()
    client.jobs.stream(run.name)
    watching.join()
    shown = capsys.readouterr().out
    assert "Streaming user_logs/std_log_process_0.txt" in shown
    assert "process rank_0 3 1,2 yes" in shown
    assert "rank_1" not in shown
    assert ended(client, run.name) == "Completed"

    client.jobs.download(run.name, download_path=str(tmp_path / "all"))
    artifacts = tmp_path / "all/artifacts"
    assert sorted(path.name for path in (artifacts / "user_logs").iterdir()) == [
        f"std_log_process_{rank}.txt" for rank in range(4)
    ]
    assert (artifacts / "user_logs/std_log_process_3.txt").read_text() == "process rank_3 3 1,2 yes\n"
    assert (artifacts / "outputs/2.txt").read_text() == "an artifact"

    environments = told(client, run.name, tmp_path)
    assert [each["RANK"] for each in environments] == ["0", "1", "2", "3"]
    assert [each["AZUREML_CR_NODE_RANK"] for each in environments] == ["0", "0", "1", "1"]
    assert [each["AZ_BATCH_IS_CURRENT_NODE_MASTER"] for each in environments] == ["true", "true", "false", "false"]
    assert len({each["AZ_BATCH_MASTER_NODE"] for each in environments}) == 1
    last = environments[3]
    master = f"{last['MASTER_ADDR']}:{last['MASTER_PORT']}"
    expected = {
        "WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1", "AZUREML_RUN_ID": run.name, "AZUREML_NODE_COUNT": "2",
        "AZUREML_EXPERIMENT_NAME": "first", "AZUREML_ARM_WORKSPACE_NAME": names(azure)[2], "MINE": "yes",
        "AZ_BATCH_HOST_LIST": "127.0.0.1,127.0.0.1", "AZ_BATCH_NODE_LIST": "127.0.0.1;127.0.0.1",
        "AZ_BATCH_MASTER_NODE": master, "AZURE_ML_INPUT_epochs": "3", "AZUREML_PROCESS_NAME": "rank_3",
    }  # fmt: skip
    assert {name: last.get(name) for name in expected} == expected
    assert [name for name in last if name.startswith(("JOBSDK_", "TORCHELASTIC_"))] == ["JOBSDK_OF_MINE"]
    assert not {"LOCAL_WORLD_SIZE", "GROUP_RANK"} & set(last)


def test_unchanged_code_is_not_uploaded_again(client: Any, azure: Running, tmp_path: Path) -> None:
    first, second = telling(tmp_path / "a"), telling(tmp_path / "b")
    name = client.jobs.create_or_update(first).name
    azure.forget_requests()
    again = client.jobs.create_or_update(second).name
    assert not any("startPendingUpload" in line for line in management(azure))
    assert [ended(client, each) for each in (name, again)] == ["Completed", "Completed"]


def test_one_process_alone(client: Any, tmp_path: Path) -> None:
    run = client.jobs.create_or_update(telling(tmp_path / "code"))
    assert ended(client, run.name) == "Completed"
    (environment,) = told(client, run.name, tmp_path)
    assert environment["AZUREML_PROCESS_NAME"] == "main"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "AZ_BATCH_MASTER_NODE", "TF_CONFIG"} & set(environment)
    client.jobs.download(run.name, download_path=str(tmp_path / "all"))
    assert os.listdir(tmp_path / "all/artifacts/user_logs") == ["std_log.txt"]


def test_mpi_has_what_mpirun_gives_and_no_more(client: Any, tmp_path: Path, require_mpirun: str) -> None:
    from azure.ai.ml import MpiDistribution

    run = client.jobs.create_or_update(
        telling(tmp_path / "code", distribution=MpiDistribution(process_count_per_instance=2))
    )
    assert ended(client, run.name) == "Completed"
    environments = told(client, run.name, tmp_path)
    assert [each["OMPI_COMM_WORLD_RANK"] for each in environments] == ["0", "1"]
    assert environments[0]["AZ_BATCHAI_MPI_MASTER_NODE"] == "127.0.0.1"
    assert not {"RANK", "MASTER_ADDR", "WORLD_SIZE", "AZ_BATCH_MASTER_NODE"} & set(environments[0])


def test_tensorflow_has_the_empty_list_of_parameter_servers(client: Any, tmp_path: Path) -> None:
    from azure.ai.ml import TensorFlowDistribution

    run = client.jobs.create_or_update(
        telling(tmp_path / "code", distribution=TensorFlowDistribution(worker_count=2), instance_count=2)
    )
    assert ended(client, run.name) == "Completed"
    environments = told(client, run.name, tmp_path)
    configs = [json.loads(each["TF_CONFIG"]) for each in environments]
    assert [config["cluster"]["ps"] for config in configs] == [[], []]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert [each["AZUREML_PROCESS_NAME"] for each in environments] == ["worker_0", "worker_1"]


def test_a_failure_is_an_exception_that_names_the_log(client: Any) -> None:
    from azure.ai.ml import PyTorchDistribution
    from azure.ai.ml.exceptions import JobException

    command = 'if [ $RANK = 1 ]; then echo "no such luck" >&2; exit 3; fi; exec sleep 600'
    run = client.jobs.create_or_update(job(command, distribution=PyTorchDistribution(process_count_per_instance=2)))
    with pytest.raises(JobException) as failure:
        client.jobs.stream(run.name)
    said = json.loads(str(failure.value).partition("Exception :")[2])
    assert said["error"]["code"] == "UserError"
    assert "exited with status code 3" in said["error"]["message"]
    assert "'user_logs/std_log_process_1.txt'" in said["error"]["message"]
    assert ended(client, run.name) == "Failed"


def test_a_job_is_cancelled_with_its_processes(client: Any) -> None:
    run = client.jobs.create_or_update(job("exec sleep 12345.678"))
    wait_for(lambda: processes_with("12345.678"), 120)
    client.jobs.begin_cancel(run.name).result()
    assert ended(client, run.name) == "Canceled"
    wait_for(lambda: not processes_with("12345.678"), 60)
    client.jobs.begin_cancel(run.name).result()  # once more changes nothing
    assert ended(client, run.name) == "Canceled"


def test_archived_jobs_and_changed_tags(client: Any) -> None:
    run = client.jobs.create_or_update(job("true"))
    assert ended(client, run.name) == "Completed"

    def listed(**options: Any) -> bool:
        return run.name in [each.name for each in client.jobs.list(**options)]

    assert (listed(), listed(list_view_type="ArchivedOnly")) == (True, False)
    client.jobs.archive(run.name)
    assert (listed(), listed(list_view_type="ArchivedOnly"), listed(list_view_type="All")) == (False, True, True)
    client.jobs.restore(run.name)
    assert listed()
    run.tags["kept"] = "yes"
    client.jobs.create_or_update(run)
    assert client.jobs.get(run.name).tags == {"kept": "yes"}
    assert client.jobs.show_services(run.name) is None


def test_assets_by_name(client: Any, tmp_path: Path) -> None:
    from azure.ai.ml import Input, Output
    from azure.ai.ml.entities import Data, Environment

    for version, text in (("1", "old"), ("2", "new")):
        (tmp_path / "words.txt").write_text(text)
        path = str(tmp_path / "words.txt")
        client.data.create_or_update(Data(name="words", version=version, path=path, type="uri_file"))
    client.environments.create_or_update(Environment(name="own", image="ubuntu"))
    inputs = {"old": Input(type="uri_file", path="words:1"), "new": Input(type="uri_file", path="words@latest")}
    outputs = {"both": Output(type="uri_file", name="joined", version="7")}
    command = "cat ${{inputs.old}} ${{inputs.new}} > ${{outputs.both}}"
    run = client.jobs.create_or_update(job(command, inputs=inputs, outputs=outputs, environment="own@latest"))
    assert ended(client, run.name) == "Completed"
    assert client.data.get("joined", "7").path.endswith(f"azureml/{run.name}/both/")
    client.jobs.download(run.name, download_path=str(tmp_path), output_name="both")
    assert (tmp_path / "named-outputs/both/both").read_text() == "oldnew"
    inputs = {
        "asset": Input(type="uri_file", path="joined:7"),
        "output": Input(type="uri_folder", path=f"azureml://jobs/{run.name}/outputs/both"),
        "itself": Input(type="uri_file", path="azureml://datastores/workspaceblobstore/paths/x", mode="direct"),
    }
    command = 'test "$(cat ${{inputs.asset}} ${{inputs.output}}/*)" = oldnewoldnew -a ${{inputs.itself}} != /x'
    second = client.jobs.create_or_update(job(command, inputs=inputs))
    assert ended(client, second.name) == "Completed"


def test_the_rest_of_the_workspace(client: Any, azure: Running) -> None:
    from azure.core.exceptions import ResourceNotFoundError

    assert client.compute.get("any").type == "amlcompute"
    assert client.workspaces.get(names(azure)[2]).location == "eastus"
    assert client.datastores.get_default().name == "workspaceblobstore"
    for asked in (
        lambda: client.jobs.get("never_heard_of"),
        lambda: client.datastores.get("never_heard_of"),
        lambda: client.environments.get("never_heard_of", "1"),
    ):
        with pytest.raises(ResourceNotFoundError, match="never_heard_of"):
            asked()


def test_what_is_not_covered_is_a_501_that_says_so(client: Any) -> None:
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(
        HttpResponseError, match=r"does not cover GET https://management\.azure\.com/.*/models"
    ) as error:
        list(client.models.list())
    assert error.value.status_code == 501


def test_a_job_that_cannot_be_run_here_is_refused(client: Any) -> None:
    from azure.ai.ml.entities import JupyterLabJobService
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(HttpResponseError, match="cannot run a distribution of the type Ray"):
        client.jobs.create_or_update(job("true", distribution={"type": "ray"}))
    with pytest.raises(HttpResponseError, match="cannot run the services lab"):
        client.jobs.create_or_update(job("true", services={"lab": JupyterLabJobService()}))


def test_another_workspace_is_not_found(azure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.ai.ml import MLClient
    from azure.core.exceptions import ResourceNotFoundError
    from azure.identity import DefaultAzureCredential

    use(azure, monkeypatch)
    subscription, group, _ = names(azure)
    credential = DefaultAzureCredential()
    for workspace, code in (
        (("none", "none", "none"), "SubscriptionNotFound"),
        ((subscription, "none", "none"), "ResourceGroupNotFound"),
        ((subscription, group, "none"), "ResourceNotFound"),
    ):
        with pytest.raises(ResourceNotFoundError, match=code):
            MLClient(credential, *workspace).jobs.get("any")


def test_wrong_credentials_are_refused_as_entra_does(azure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import ClientSecretCredential

    use(azure, monkeypatch)
    tenant, application = azure.environ["AZURE_TENANT_ID"], azure.environ["AZURE_CLIENT_ID"]
    secret = azure.environ["AZURE_CLIENT_SECRET"]
    scope = "https://management.azure.com/.default"
    assert ClientSecretCredential(tenant, application, secret).get_token(scope).token
    for given, says in (
        ((tenant, application, "wrong"), "AADSTS7000215"),
        ((tenant, "wrong", secret), "AADSTS700016"),
        (("00000000-0000-0000-0000-000000000000", application, secret), "authority configuration"),
    ):
        with pytest.raises(ClientAuthenticationError, match=says) as error:
            ClientSecretCredential(*given).get_token(scope)
        assert secret not in str(error.value)
    assert secret not in json.dumps(azure.requests())


def test_faults_are_met_as_azures_are(client: Any, azure: Running) -> None:
    from azure.core.exceptions import HttpResponseError

    azure.add_fault(method="PUT", path="/jobs/", status=429, retry_after=1)
    azure.forget_requests()
    name = client.jobs.create_or_update(job("true")).name
    assert [one["status"] for one in azure.requests() if one["method"] == "PUT" and "/jobs/" in one["path"]] == [
        429,
        201,
    ]
    assert ended(client, name) == "Completed"
    azure.add_fault(method="PUT", path="/jobs/", status=403)
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        client.jobs.create_or_update(job("true"))
    azure.add_fault(method="PUT", path="/jobs/", status=409, code="QuotaExceeded", message="No cores are left.")
    with pytest.raises(HttpResponseError, match="No cores are left"):
        client.jobs.create_or_update(job("true"))
