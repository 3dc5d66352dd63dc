"""What an emulator is called and keeps secret: made at its first start, and the same at each later one."""

from __future__ import annotations

import base64
import json
import os
import shlex
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from jobsdk.compute.azureml.workspace import Workspace
from jobsdk.emulator.certificates import write_private
from jobsdk.errors import JobsdkError

_FILE = "emulator.json"
#: The region that the workspace is said to be in.
LOCATION = "eastus"


@dataclass(frozen=True)
class Settings:
    """`client_secret`, `account_key`, `token_key` and `control_key` are secret; the file that keeps them is private."""

    subscription_id: str
    resource_group: str
    workspace_name: str
    workspace_guid: str
    tenant_id: str
    client_id: str
    client_secret: str
    token_key: str
    control_key: str
    account: str
    account_key: str

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.subscription_id, self.resource_group, self.workspace_name)

    @property
    def blob_host(self) -> str:
        """Azure's name of the storage account."""
        return f"{self.account}.blob.core.windows.net"

    @property
    def api_host(self) -> str:
        """Azure's name of run history and the other services beside the management API."""
        return f"{LOCATION}.api.azureml.ms"

    @property
    def containers(self) -> dict[str, str]:
        """The containers of the workspace's two datastores."""
        return {
            "workspaceblobstore": f"azureml-blobstore-{self.workspace_guid}",
            "workspaceartifactstore": "azureml",
        }


def make_folder(folder: Path) -> None:
    """Make the folder of an emulator, which nobody else can read. Raises JobsdkError for one that holds other files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        if any(folder.iterdir()) and not (folder / _FILE).exists():
            raise JobsdkError(
                f"{folder} holds other files, and other users can read it. Fix: give another --folder, or chmod go= "
                f"{shlex.quote(str(folder))}"
            )
        folder.chmod(0o700)


def load_or_make(folder: Path, workspace: Workspace | None = None) -> Settings:
    """The settings of the emulator in `folder`; `workspace` names the one that it is to have. Raises JobsdkError."""
    path = folder / _FILE
    try:
        found = Settings(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        found = _made(workspace)
        write_private(path, json.dumps(asdict(found), indent=1).encode())
    except (ValueError, TypeError) as error:
        raise JobsdkError(f"{path} is no emulator's: {error}. Fix: give another --folder, or remove it") from None
    if workspace is not None and found.workspace != workspace:
        raise JobsdkError(
            f"the emulator in {folder} has the workspace {found.workspace.id}, not the one that is asked for. "
            "Fix: give another --folder"
        )
    return found


def _made(workspace: Workspace | None) -> Settings:
    workspace = workspace or default_workspace()
    return Settings(
        *workspace,
        workspace_guid=str(uuid.uuid4()),
        tenant_id=str(uuid.uuid4()),
        client_id=str(uuid.uuid4()),
        client_secret=base64.urlsafe_b64encode(os.urandom(24)).decode(),
        token_key=os.urandom(32).hex(),
        control_key=os.urandom(16).hex(),
        account=f"emulated{int.from_bytes(os.urandom(5), 'big') % 10**10:010d}",
        account_key=base64.b64encode(os.urandom(64)).decode(),
    )


def default_workspace() -> Workspace:
    """The default names of an emulator's workspace."""
    return Workspace("00000000-0000-4000-8000-000000000000", "emulated", "emulated")
