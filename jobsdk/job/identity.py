"""The identity with which a job reaches its data, as Azure ML has it.

Each type is written in snake case, camel case or as the REST interface spells it (`AMLToken`), as azure-ai-ml takes it.
"""

from __future__ import annotations

from jobsdk.job.kinds import Text, TypeName
from jobsdk.job.model import Model, Tagged, field


class ManagedIdentityConfiguration(Model):
    """A managed identity of the compute. At most one of the three ids is needed."""

    type: str = field(TypeName("managed", "managed_identity", "managedidentity"), default="managed", doc="managed")
    client_id: str | None = field(Text(empty=False), default=None, doc="Its client id.")
    object_id: str | None = field(Text(empty=False), default=None, doc="Its object id.")
    msi_resource_id: str | None = field(Text(empty=False), default=None, doc="Its resource id.")


class AmlTokenConfiguration(Model):
    """A token that the service makes for the job."""

    type: str = field(TypeName("aml_token", "amltoken"), default="aml_token", doc="aml_token")


class UserIdentityConfiguration(Model):
    """The identity of who submits the job."""

    type: str = field(TypeName("user_identity", "useridentity"), default="user_identity", doc="user_identity")


IDENTITY = Tagged(
    "a mapping with a type, or an identity object",
    ManagedIdentityConfiguration,
    AmlTokenConfiguration,
    UserIdentityConfiguration,
)
