"""`ResourceConfiguration`: what a service of a model should have."""

from collections.abc import Mapping

from runyard.domain.errors import Invalid
from runyard.domain.models import ModelResources, check_resources
from runyard.sdk.exceptions import as_v1_model


class ResourceConfiguration:
    """Cores, memory and GPUs; None: the service's own default."""

    def __init__(
        self,
        cpu: float | None = None,
        memory_in_gb: float | None = None,
        gpu: int | None = None,
    ) -> None:
        self.cpu = cpu
        self.memory_in_gb = memory_in_gb
        self.gpu = gpu

    def serialize(self) -> dict[str, float | int | None]:
        """The same as a plain dictionary."""
        return {"cpu": self.cpu, "memoryInGB": self.memory_in_gb, "gpu": self.gpu}

    @staticmethod
    def deserialize(payload_obj: Mapping[str, object] | None) -> "ResourceConfiguration | None":
        """What `serialize` was called on; None for None."""
        if payload_obj is None:
            return None
        values = {str(key).lower(): value for key, value in payload_obj.items()}
        return ResourceConfiguration(
            values.get("cpu"),  # type: ignore[arg-type]  # checked when it is used
            values.get("memoryingb"),  # type: ignore[arg-type]
            values.get("gpu"),  # type: ignore[arg-type]
        )

    def __repr__(self) -> str:
        return (
            f"ResourceConfiguration(cpu={self.cpu}, memory_in_gb={self.memory_in_gb}, "
            f"gpu={self.gpu})"
        )


def plan_resources(configuration: object | None) -> ModelResources | None:
    """The domain's word for a configuration; v1's error if it is none, or makes no sense."""
    if configuration is None:
        return None
    try:
        if not isinstance(configuration, ResourceConfiguration):
            raise Invalid(
                f"resource_configuration cannot be of type {type(configuration).__name__}.",
                fix="Pass ResourceConfiguration(cpu=1, memory_in_gb=0.5)",
            )
        amounts = (configuration.cpu, configuration.memory_in_gb, configuration.gpu)
        for amount in amounts:
            if amount is not None and (
                isinstance(amount, bool) or not isinstance(amount, int | float)
            ):
                raise Invalid(f"{amount!r} is not a number.", fix="Pass numbers, or None.")
        resources = ModelResources(
            cpu=configuration.cpu,
            memory_gb=configuration.memory_in_gb,
            gpu=None if configuration.gpu is None else int(configuration.gpu),
        )
        check_resources(resources)
        return resources
    except Invalid as error:
        raise as_v1_model(error) from None


def resources_of(resources: ModelResources | None) -> ResourceConfiguration | None:
    """The handle of what a model's record has."""
    if resources is None:
        return None
    return ResourceConfiguration(resources.cpu, resources.memory_gb, resources.gpu)
