"""All routes of the server, in the order of docs/http-api.md."""

from runyard.domain.agents import AgentOrders, AgentReport
from runyard.domain.compute import AttachSpec, ComputePatch, ComputeRecord, ComputeSpec, VmSize
from runyard.domain.data import (
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    DatastoreRecord,
    DatastoreSpec,
    ResolvedData,
)
from runyard.domain.environments import (
    EnvironmentBuild,
    EnvironmentDraft,
    EnvironmentOnDisk,
    EnvironmentRecord,
    EnvironmentSpec,
    Eviction,
)
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.metrics import Point, Series
from runyard.domain.models import ModelDraft, ModelLineage, ModelPage, ModelPatch, ModelRecord
from runyard.domain.runs import RunError, RunPage, RunPatch, RunRecord, Submission
from runyard.domain.server import ServerInfo
from runyard.domain.services import (
    ServiceDraft,
    ServiceKeys,
    ServiceLogs,
    ServicePatch,
    ServiceRecord,
    ServiceToken,
)
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord, WorkspaceSpec
from runyard.server import (
    about,
    compute,
    data,
    environments,
    events,
    files,
    images,
    metrics,
    models,
    nodes,
    openapi,
    runs,
    service_pages,
    services,
    streams,
    web,
    workspaces,
)
from runyard.server.routing import Call, Handler, NoQuery, Permission, Route
from runyard_runtime import wire

_API = "/api/v1"
_WORKSPACE = f"{_API}/workspaces/{{workspace}}"
_EXPERIMENT = f"{_WORKSPACE}/experiments/{{experiment}}"
_BLOB = f"{_API}/blobs/{{digest}}"
_RUN = f"{_API}/runs/{{run}}"
_FILE = f"{_RUN}/files/{{path...}}"
_STREAM = f"{_RUN}/streams/{{kind}}/{{name...}}"

_DATASTORE = f"{_WORKSPACE}/datastores/{{datastore}}"
_DATASETS = f"{_WORKSPACE}/datasets"
_ENVIRONMENT = f"{_WORKSPACE}/environments/{{environment}}"
_BUILT = f"{_API}/environments"
_COMPUTE = f"{_WORKSPACE}/computes/{{compute}}"
_SERVICE = f"{_WORKSPACE}/services/{{service}}"
_MODEL = f"{_API}/models/{{model}}"

P = Permission


def _get(path: str, permission: Permission, handler: Handler, answer: object) -> Route:
    return Route(verb="GET", path=path, permission=permission, handler=handler, answer=answer)


def _post(
    path: str, permission: Permission, handler: Handler, body: object, answer: object
) -> Route:
    return Route(
        verb="POST", path=path, permission=permission, handler=handler, body=body, answer=answer
    )


def openapi_document(call: Call[None, NoQuery]) -> dict[str, object]:
    """The OpenAPI document of this server."""
    return openapi.describe(ROUTES)


SERVER_ROUTES = (
    _get("/healthz", P.PUBLIC, about.health, about.Health),
    _get(f"{_API}/server", P.READ, about.server, ServerInfo),
    _post(f"{_API}/server/stop", P.WRITE, about.stop, None, None),
    _post(f"{_API}/ticket", P.WRITE, runs.ticket_for_all, None, runs.Ticket),
    _get(f"{_API}/openapi.json", P.READ, openapi_document, dict[str, object]),
    _get(f"{_API}/runtime", P.JOB, nodes.runtime, bytes),
    _get(f"{_API}/uv", P.JOB, nodes.uv, bytes),
)

WORKSPACE_ROUTES = (
    _post(
        f"{_API}/workspaces", P.WRITE, workspaces.create_workspace, WorkspaceSpec, WorkspaceRecord
    ),
    _get(f"{_API}/workspaces", P.READ, workspaces.list_workspaces, list[WorkspaceRecord]),
    _get(_WORKSPACE, P.READ, workspaces.get_workspace, WorkspaceRecord),
    Route(
        verb="DELETE",
        path=_WORKSPACE,
        permission=P.WRITE,
        handler=workspaces.delete_workspace,
    ),
    Route(
        verb="PUT",
        path=_EXPERIMENT,
        permission=P.WRITE,
        handler=workspaces.ensure_experiment,
        answer=ExperimentRecord,
    ),
    _get(
        f"{_WORKSPACE}/experiments",
        P.READ,
        workspaces.list_experiments,
        list[ExperimentRecord],
    ),
    _get(_EXPERIMENT, P.READ, workspaces.get_experiment, ExperimentRecord),
)

BLOB_ROUTES = (
    _post(f"{_API}/blobs/missing", P.JOB, files.missing_blobs, list[str], list[str]),
    Route(verb="PUT", path=_BLOB, permission=P.JOB, handler=files.put_blob),
    _get(_BLOB, P.JOB, files.get_blob, bytes),
)

RUN_ROUTES = (
    _post(f"{_API}/runs", P.SUBMIT, runs.submit, Submission, RunRecord),
    Route(
        verb="GET",
        path=f"{_API}/runs",
        permission=P.READ,
        handler=runs.list_runs,
        query=runs.RunsQuery,
        answer=RunPage,
    ),
    Route(
        verb="GET",
        path=_RUN,
        permission=P.VIEW,
        handler=runs.get_run,
        query=runs.RunQuery,
        answer=RunRecord,
    ),
    Route(
        verb="PATCH",
        path=_RUN,
        permission=P.RUN,
        handler=runs.patch,
        body=RunPatch,
        answer=RunRecord,
    ),
    Route(
        verb="POST",
        path=f"{_RUN}/cancel",
        permission=P.WRITE,
        handler=runs.cancel,
        query=runs.CancelQuery,
        answer=RunRecord,
    ),
    _post(f"{_RUN}/complete", P.SUPERVISE, runs.complete, None, RunRecord),
    _post(f"{_RUN}/fail", P.SUPERVISE, runs.fail, RunError, RunRecord),
    _post(f"{_RUN}/ticket", P.JOB, runs.ticket, None, runs.Ticket),
    _get(f"{_RUN}/snapshot", P.READ, runs.snapshot, list[FileEntry]),
)

DATA_ROUTES = (
    Route(
        verb="GET",
        path=f"{_RUN}/metrics",
        permission=P.VIEW,
        handler=metrics.get_series,
        query=metrics.MetricsQuery,
        answer=dict[str, list[Series]],
    ),
    _post(f"{_RUN}/metrics", P.RUN, metrics.append_points, list[Point], None),
    Route(
        verb="GET",
        path=f"{_RUN}/files",
        permission=P.VIEW,
        handler=files.list_files,
        query=files.FilesQuery,
        answer=list[FileInfo],
    ),
    _get(_FILE, P.VIEW, files.get_file, bytes),
    _post(f"{_RUN}/files", P.RUN, files.put_files, list[FileEntry], None),
    Route(
        verb="POST",
        path=_STREAM,
        permission=P.RUN,
        handler=streams.append,
        query=streams.OffsetQuery,
        body=bytes,
        body_limit_bytes=wire.CHUNK_LIMIT_BYTES,
        answer=streams.StreamEnd,
    ),
    _get(_STREAM, P.RUN, streams.get_end, streams.StreamEnd),
    _post(f"{_RUN}/reports", P.REPORT, runs.report, AgentReport, AgentOrders),
    Route(
        verb="GET",
        path=f"{_RUN}/plan",
        permission=P.REPORT,
        handler=nodes.plan,
        query=nodes.AttemptQuery,
        answer=dict[str, object],
    ),
    Route(
        verb="POST",
        path=f"{_RUN}/board",
        permission=P.REPORT,
        handler=nodes.post_note,
        query=nodes.BoardQuery,
        body=dict[str, object],
        answer=nodes.NotesPage,
        body_limit_bytes=nodes.LARGEST_NOTE,
    ),
    Route(
        verb="GET",
        path=f"{_RUN}/board",
        permission=P.REPORT,
        handler=nodes.read_notes,
        query=nodes.BoardQuery,
        answer=nodes.NotesPage,
    ),
    Route(
        verb="GET",
        path=f"{_RUN}/events",
        permission=P.VIEW,
        handler=events.follow,
        query=events.EventsQuery,
        answer=bytes,
        media="text/event-stream",
    ),
)

STORE_ROUTES = (
    _get(f"{_WORKSPACE}/datastores", P.READ, data.list_datastores, list[DatastoreRecord]),
    Route(
        verb="PUT",
        path=_DATASTORE,
        permission=P.WRITE,
        handler=data.put_datastore,
        body=DatastoreSpec,
        answer=DatastoreRecord,
    ),
    _get(_DATASTORE, P.READ, data.get_datastore, DatastoreRecord),
    Route(verb="DELETE", path=_DATASTORE, permission=P.WRITE, handler=data.remove_datastore),
    _post(f"{_DATASTORE}/default", P.WRITE, data.set_default_datastore, None, DatastoreRecord),
    Route(
        verb="GET",
        path=f"{_DATASTORE}/files",
        permission=P.READ,
        handler=data.list_store_files,
        query=files.FilesQuery,
        answer=list[FileInfo],
    ),
    _post(f"{_DATASTORE}/files", P.JOB, data.put_store_files, list[FileEntry], None),
    _get(f"{_DATASTORE}/files/{{path...}}", P.READ, data.get_store_file, bytes),
    _get(f"{_API}/stores/{{datastore_id}}/files/{{path...}}", P.READ, data.get_origin_file, bytes),
)

DATASET_ROUTES = (
    _post(_DATASETS, P.JOB, data.register_dataset, DatasetRegistration, DatasetRecord),
    Route(
        verb="GET",
        path=_DATASETS,
        permission=P.READ,
        handler=data.list_datasets,
        query=data.DatasetsQuery,
        answer=list[DatasetRecord],
    ),
    Route(
        verb="DELETE",
        path=f"{_DATASETS}/{{name}}",
        permission=P.WRITE,
        handler=data.unregister_dataset,
    ),
    _post(f"{_DATASETS}/resolve", P.READ, data.resolve_dataset, DatasetSpec, ResolvedData),
    _get(f"{_API}/datasets/{{dataset}}", P.READ, data.get_dataset, DatasetRecord),
    _get(f"{_API}/datasets/{{dataset}}/files", P.READ, data.dataset_files, ResolvedData),
    _get(f"{_RUN}/inputs/{{name}}", P.READ, data.run_input, ResolvedData),
)

ENVIRONMENT_ROUTES = (
    _post(
        f"{_WORKSPACE}/environments",
        P.WRITE,
        environments.register,
        EnvironmentDraft,
        EnvironmentRecord,
    ),
    _get(
        f"{_WORKSPACE}/environments",
        P.READ,
        environments.list_environments,
        list[EnvironmentRecord],
    ),
    Route(
        verb="GET",
        path=_ENVIRONMENT,
        permission=P.READ,
        handler=environments.get_environment,
        query=environments.EnvironmentQuery,
        answer=EnvironmentRecord,
    ),
    _get(f"{_ENVIRONMENT}/versions", P.READ, environments.list_versions, list[EnvironmentRecord]),
    Route(
        verb="PUT",
        path=f"{_ENVIRONMENT}/versions/{{version}}/labels",
        permission=P.WRITE,
        handler=environments.set_labels,
        body=list[str],
        answer=EnvironmentRecord,
    ),
    _get(_BUILT, P.READ, environments.list_built, list[EnvironmentOnDisk]),
    _get(f"{_BUILT}/{{key}}", P.READ, environments.get_built, EnvironmentOnDisk),
    _post(f"{_BUILT}/find", P.READ, environments.find_built, EnvironmentSpec, EnvironmentBuild),
    _post(f"{_BUILT}/builds", P.WRITE, environments.start_build, EnvironmentSpec, EnvironmentBuild),
    Route(
        verb="GET",
        path=f"{_BUILT}/builds/{{build}}",
        permission=P.READ,
        handler=environments.get_build,
        query=environments.BuildQuery,
        answer=EnvironmentBuild,
    ),
    _post(f"{_BUILT}/evict", P.WRITE, environments.evict, Eviction, list[EnvironmentOnDisk]),
)

COMPUTE_ROUTES = (
    _get(f"{_API}/vmsizes", P.READ, compute.list_sizes, list[VmSize]),
    Route(
        verb="GET",
        path=f"{_WORKSPACE}/computes",
        permission=P.READ,
        handler=compute.list_computes,
        query=compute.LookQuery,
        answer=list[ComputeRecord],
    ),
    Route(
        verb="PUT",
        path=_COMPUTE,
        permission=P.WRITE,
        handler=compute.put_compute,
        body=ComputeSpec,
        answer=ComputeRecord,
    ),
    Route(
        verb="GET",
        path=_COMPUTE,
        permission=P.READ,
        handler=compute.get_compute,
        query=compute.LookQuery,
        answer=ComputeRecord,
    ),
    Route(
        verb="PATCH",
        path=_COMPUTE,
        permission=P.WRITE,
        handler=compute.patch_compute,
        body=ComputePatch,
        answer=ComputeRecord,
    ),
    Route(
        verb="DELETE",
        path=_COMPUTE,
        permission=P.WRITE,
        handler=compute.delete_compute,
        query=compute.RemoveQuery,
    ),
    _post(f"{_COMPUTE}/attach", P.WRITE, compute.attach_compute, AttachSpec, ComputeRecord),
)

MODEL_ROUTES = (
    _post(f"{_API}/models", P.JOB, models.register_model, ModelDraft, ModelRecord),
    Route(
        verb="GET",
        path=f"{_API}/models",
        permission=P.READ,
        handler=models.list_models,
        query=models.ModelsQuery,
        answer=ModelPage,
    ),
    _get(_MODEL, P.READ, models.get_model, ModelRecord),
    Route(
        verb="PATCH",
        path=_MODEL,
        permission=P.JOB,
        handler=models.patch_model,
        body=ModelPatch,
        answer=ModelRecord,
    ),
    Route(verb="DELETE", path=_MODEL, permission=P.WRITE, handler=models.delete_model),
    _get(f"{_MODEL}/lineage", P.READ, models.get_model_lineage, ModelLineage),
    _get(f"{_MODEL}/files/{{path...}}", P.READ, models.get_model_file, bytes),
)

SERVICE_ROUTES = (
    _get(f"{_WORKSPACE}/services", P.READ, services.list_services, list[ServiceRecord]),
    Route(
        verb="PUT",
        path=_SERVICE,
        permission=P.WRITE,
        handler=services.put_service,
        body=ServiceDraft,
        answer=ServiceRecord,
    ),
    Route(
        verb="GET",
        path=_SERVICE,
        permission=P.READ,
        handler=services.get_service,
        query=services.ServiceQuery,
        answer=ServiceRecord,
    ),
    Route(
        verb="PATCH",
        path=_SERVICE,
        permission=P.WRITE,
        handler=services.patch_service,
        body=ServicePatch,
        answer=ServiceRecord,
    ),
    Route(
        verb="DELETE",
        path=_SERVICE,
        permission=P.WRITE,
        handler=services.delete_service,
        answer=ServiceRecord,
    ),
    _post(f"{_SERVICE}/restart", P.WRITE, services.restart_service, None, ServiceRecord),
    Route(
        verb="GET",
        path=f"{_SERVICE}/logs",
        permission=P.READ,
        handler=services.get_logs,
        query=services.LogsQuery,
        answer=ServiceLogs,
    ),
    _get(f"{_SERVICE}/keys", P.WRITE, services.get_keys, ServiceKeys),
    _post(f"{_SERVICE}/keys/{{which}}", P.WRITE, services.set_key, services.KeyChoice, ServiceKeys),
    _post(f"{_SERVICE}/token", P.WRITE, services.make_token, None, ServiceToken),
)

PAGE_ROUTES = (
    Route(
        verb="GET",
        path="/",
        permission=P.PAGE,
        handler=web.home_page,
        query=web.HomeQuery,
        answer=bytes,
        media="text/html",
    ),
    Route(
        verb="GET",
        path="/runs/{run}",
        permission=P.PAGE,
        handler=web.run_page,
        query=web.PageQuery,
        answer=bytes,
        media="text/html",
    ),
    Route(
        verb="GET",
        path="/runs/{run}/images/{path...}",
        permission=P.VIEW,
        handler=images.get_image,
        query=images.ImageQuery,
        answer=bytes,
    ),
    Route(
        verb="GET",
        path="/models",
        permission=P.PAGE,
        handler=web.models_page,
        query=web.ModelsPageQuery,
        answer=bytes,
        media="text/html",
    ),
    Route(
        verb="GET",
        path="/models/{model}",
        permission=P.PAGE,
        handler=web.model_page,
        query=web.ModelPageQuery,
        answer=bytes,
        media="text/html",
    ),
    Route(
        verb="GET",
        path="/services",
        permission=P.PAGE,
        handler=service_pages.services_page,
        query=service_pages.ServicesPageQuery,
        answer=bytes,
        media="text/html",
    ),
    Route(
        verb="GET",
        path="/services/{workspace}/{service}",
        permission=P.PAGE,
        handler=service_pages.service_page,
        query=service_pages.ServicePageQuery,
        answer=bytes,
        media="text/html",
    ),
    _get("/static/{name}", P.PUBLIC, web.static_file, bytes),
)

ROUTES = (
    *SERVER_ROUTES,
    *WORKSPACE_ROUTES,
    *BLOB_ROUTES,
    *RUN_ROUTES,
    *DATA_ROUTES,
    *STORE_ROUTES,
    *DATASET_ROUTES,
    *ENVIRONMENT_ROUTES,
    *COMPUTE_ROUTES,
    *MODEL_ROUTES,
    *SERVICE_ROUTES,
    *PAGE_ROUTES,
)
