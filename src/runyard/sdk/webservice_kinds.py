"""v1's three kinds of services. All run on the server's machine; they differ in their defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

from runyard.domain.services import AccessPatch, ServiceState
from runyard.sdk.deployment import Change, Code
from runyard.sdk.deployment_configuration import (
    AciServiceDeploymentConfiguration,
    AksServiceDeploymentConfiguration,
    LocalWebserviceDeploymentConfiguration,
    replicas_of,
    seconds_of,
    warn_of_no_effect,
)
from runyard.sdk.exceptions import WebserviceException, error_text
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.webservice import Webservice, code_for

if TYPE_CHECKING:
    from runyard.sdk.images import Image, ImageConfig

_LOCAL_WORDS = {
    ServiceState.TRANSITIONING: "deploying",
    ServiceState.HEALTHY: "running",
    ServiceState.FAILED: "failed",
    ServiceState.UNHEALTHY: "unknown",
}
_Labels = Mapping[str, object]
_Models = Sequence[Model]


class AciWebservice(Webservice):
    """A service as on Azure Container Instances."""

    _webservice_type = "ACI"

    deploy_configuration = AciServiceDeploymentConfiguration  # called, it gives one

    def update(  # type: ignore[override]  # v1's own parameters
        self,
        image: "Image | None" = None,
        tags: _Labels | None = None,
        properties: _Labels | None = None,
        description: str | None = None,
        auth_enabled: bool | None = None,
        ssl_enabled: bool | None = None,
        ssl_cert_pem_file: str | None = None,
        ssl_key_pem_file: str | None = None,
        ssl_cname: str | None = None,
        enable_app_insights: bool | None = None,
        models: _Models | None = None,
        inference_config: InferenceConfig | None = None,
    ) -> None:
        """Change what is given; other models or code are tried before they take over."""
        given = AciServiceDeploymentConfiguration(
            auth_enabled=auth_enabled,
            ssl_enabled=ssl_enabled,
            enable_app_insights=enable_app_insights,
            ssl_cert_pem_file=ssl_cert_pem_file,
            ssl_key_pem_file=ssl_key_pem_file,
            ssl_cname=ssl_cname,
        )
        warn_of_no_effect(given)
        chosen, code = _content(image, models, inference_config)
        said = {
            "auth_enabled": auth_enabled,
            "ssl_enabled": ssl_enabled,
            "ssl_cname": ssl_cname,
            "enable_app_insights": enable_app_insights,
        }
        self._update(
            Change(
                models=chosen,
                code=code,
                access=None if auth_enabled is None else AccessPatch(key_auth=auth_enabled),
                description=description,
                tags=tags,
                properties=properties,
                details={key: value for key, value in said.items() if value is not None},
            )
        )


class AksWebservice(Webservice):
    """A service as on Kubernetes."""

    _webservice_type = "AKS"

    deploy_configuration = AksServiceDeploymentConfiguration  # called, it gives one

    def update(  # type: ignore[override]  # v1's own parameters
        self,
        image: "Image | None" = None,
        autoscale_enabled: bool | None = None,
        autoscale_min_replicas: int | None = None,
        autoscale_max_replicas: int | None = None,
        autoscale_refresh_seconds: int | None = None,
        autoscale_target_utilization: int | None = None,
        collect_model_data: bool | None = None,
        auth_enabled: bool | None = None,
        cpu_cores: float | None = None,
        memory_gb: float | None = None,
        enable_app_insights: bool | None = None,
        scoring_timeout_ms: int | None = None,
        replica_max_concurrent_requests: int | None = None,
        max_request_wait_time: int | None = None,
        num_replicas: int | None = None,
        tags: _Labels | None = None,
        properties: _Labels | None = None,
        description: str | None = None,
        models: _Models | None = None,
        inference_config: InferenceConfig | None = None,
        gpu_cores: int | None = None,
        period_seconds: int | None = None,
        initial_delay_seconds: int | None = None,
        timeout_seconds: int | None = None,
        success_threshold: int | None = None,
        failure_threshold: int | None = None,
        namespace: str | None = None,
        token_auth_enabled: bool | None = None,
        cpu_cores_limit: float | None = None,
        memory_gb_limit: float | None = None,
        **kwargs: object,
    ) -> None:
        """Change what is given; other models, code or replicas are tried before they take over."""
        given = dict(locals())
        names = {field.name for field in fields(AksServiceDeploymentConfiguration)}
        names -= {"description", "tags", "properties"}
        said = {name: given[name] for name in names & set(given) if given[name] is not None}
        chosen, code = _content(image, models, inference_config)
        change = Change(
            models=chosen, code=code, description=description, tags=tags, properties=properties
        )
        self._change_settings(said, change)

    def _change_settings(self, said: Mapping[str, object], change: Change) -> None:
        given = AksServiceDeploymentConfiguration(**said)  # type: ignore[arg-type]  # checked there
        warn_of_no_effect(given)
        access = AccessPatch(
            key_auth=given.auth_enabled,
            token_auth=given.token_auth_enabled,
            timeout_seconds=seconds_of(given, self._record.access),
        )
        self._update(
            msgspec.structs.replace(
                change,
                replicas=replicas_of(given),
                cores=given.cpu_cores,
                memory_gb=given.memory_gb,
                gpus=given.gpu_cores,
                access=access if access != AccessPatch() else None,
                details=dict(said),
            )
        )


class LocalWebservice(Webservice):
    """A service to try things with; `reload` takes the script along anew."""

    _webservice_type = "Local"

    deploy_configuration = LocalWebserviceDeploymentConfiguration  # called, it gives one

    @property
    def state(self) -> str:
        """deploying, running, failed or unknown, at the last look."""
        return _LOCAL_WORDS[self._record.state]

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._record.port

    @property
    def base_url(self) -> str:
        """Its address."""
        return self._base

    def _finished(self) -> str:
        return f"Local webservice is running at {self._base}"

    def update(  # type: ignore[override]  # v1's own parameters
        self,
        models: _Models | None = None,
        image_config: "ImageConfig | None" = None,
        deployment_config: LocalWebserviceDeploymentConfiguration | None = None,
        wait: bool = False,
        inference_config: InferenceConfig | None = None,
    ) -> None:
        """Serve other models or code; they are tried before they take over."""
        from runyard.sdk.images import code_of

        port = deployment_config.port if deployment_config is not None else None
        if port is not None and port != self.port:
            raise WebserviceException(
                error_text(
                    f"Service '{self.name}' keeps its port, {self.port}.",
                    fix="Delete it and deploy it on the other one.",
                )
            )
        code = code_of(image_config) if image_config is not None else code_for(inference_config)
        if models is not None or code is not None:
            self._update(Change(models=models, code=code))
        if wait:
            self.wait_for_deployment()

    def reload(self, wait: bool = False) -> None:
        """Serve the same once more: with the script and its folder as they are now."""
        if self._code is not None:
            self._update(Change(code=self._code))
        else:
            super().reload()  # deployed by another process: the code that was sent then
        if wait:
            self.wait_for_deployment()

    def delete(
        self, delete_cache: bool = True, delete_image: bool = False, delete_volume: bool = True
    ) -> None:
        """End the service; returns when it is gone."""
        super().delete()


KINDS: Mapping[str, type[Webservice]] = {
    "ACI": AciWebservice,
    "AKS": AksWebservice,
    "Local": LocalWebservice,
}


def _content(
    image: "Image | None", models: _Models | None, inference_config: InferenceConfig | None
) -> tuple[_Models | None, Code | None]:
    """The models and the code of an update, whichever way they were given."""
    from runyard.sdk.images import code_of

    if image is None:
        return models, code_for(inference_config)
    if models is not None or inference_config is not None:
        raise WebserviceException("Error, pass either an image, or models and inference_config.")
    return image.models, code_of(image)
