"""Names of things. All are plain strings or integers, told apart by type only."""

from typing import NewType

ModelName = NewType("ModelName", str)
InstanceId = NewType("InstanceId", str)  # "<model>#<ordinal>"; "#" cannot occur in a model name
DeviceId = NewType("DeviceId", str)
Holder = NewType("Holder", str)  # who holds a claim: an instance id today, a job or KV tier later
LaunchId = NewType("LaunchId", int)
LeaseId = NewType("LeaseId", int)
HoldId = NewType("HoldId", int)
MoveId = NewType("MoveId", int)
ActionId = NewType("ActionId", str)
CauseId = NewType("CauseId", str)  # "hold:7", "action:a3", "plan:12", "exit:4", ...

#: How the cause begins of what an operator's action brought about; the action's id follows.
ACTION_CAUSE = "action:"


def instance_id(model: ModelName, ordinal: int = 0) -> InstanceId:
    """The id of a model's n-th instance (n = 0 until replicas exist)."""
    return InstanceId(f"{model}#{ordinal}")


def model_of(instance: InstanceId) -> ModelName:
    """The model that an instance belongs to."""
    return ModelName(instance.rpartition("#")[0])


def holder_of(instance: InstanceId) -> Holder:
    """The name under which an instance holds its claim."""
    return Holder(instance)
