"""All routes of the server, in the order of docs/http-api.md."""

from runyard.domain.agents import AgentOrders, AgentReport
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.metrics import Point, Series
from runyard.domain.runs import RunError, RunPage, RunPatch, RunRecord, Submission
from runyard.domain.server import ServerInfo
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord, WorkspaceSpec
from runyard.server import about, events, files, metrics, openapi, runs, streams, web, workspaces
from runyard.server.routing import Call, Handler, NoQuery, Permission, Route

_API = "/api/v1"
_WORKSPACE = f"{_API}/workspaces/{{workspace}}"
_EXPERIMENT = f"{_WORKSPACE}/experiments/{{experiment}}"
_BLOB = f"{_API}/blobs/{{digest}}"
_RUN = f"{_API}/runs/{{run}}"
_FILE = f"{_RUN}/files/{{path...}}"
_STREAM = f"{_RUN}/streams/{{kind}}/{{name...}}"

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
    _get(f"{_API}/openapi.json", P.READ, openapi_document, dict[str, object]),
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
    _post(f"{_API}/blobs/missing", P.READ, files.missing_blobs, list[str], list[str]),
    Route(verb="PUT", path=_BLOB, permission=P.JOB, handler=files.put_blob),
    _get(_BLOB, P.READ, files.get_blob, bytes),
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
        permission=P.READ,
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
    _post(f"{_RUN}/cancel", P.WRITE, runs.cancel, None, RunRecord),
    _post(f"{_RUN}/complete", P.SUPERVISE, runs.complete, None, RunRecord),
    _post(f"{_RUN}/fail", P.SUPERVISE, runs.fail, RunError, RunRecord),
    _post(f"{_RUN}/ticket", P.JOB, runs.ticket, None, runs.Ticket),
    _get(f"{_RUN}/snapshot", P.READ, runs.snapshot, list[FileEntry]),
)

DATA_ROUTES = (
    Route(
        verb="GET",
        path=f"{_RUN}/metrics",
        permission=P.READ,
        handler=metrics.get_series,
        query=metrics.MetricsQuery,
        answer=dict[str, list[Series]],
    ),
    _post(f"{_RUN}/metrics", P.RUN, metrics.append_points, list[Point], None),
    Route(
        verb="GET",
        path=f"{_RUN}/files",
        permission=P.READ,
        handler=files.list_files,
        query=files.FilesQuery,
        answer=list[FileInfo],
    ),
    _get(_FILE, P.READ, files.get_file, bytes),
    _post(f"{_RUN}/files", P.RUN, files.put_files, list[FileEntry], None),
    Route(
        verb="POST",
        path=_STREAM,
        permission=P.RUN,
        handler=streams.append,
        query=streams.OffsetQuery,
        body=bytes,
        body_limit_bytes=streams.CHUNK_LIMIT_BYTES,
        answer=streams.StreamEnd,
    ),
    _get(_STREAM, P.RUN, streams.get_end, streams.StreamEnd),
    _post(f"{_RUN}/reports", P.RUN, runs.report, AgentReport, AgentOrders),
    Route(
        verb="GET",
        path=f"{_RUN}/events",
        permission=P.READ,
        handler=events.follow,
        query=events.EventsQuery,
        answer=bytes,
        media="text/event-stream",
    ),
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
    _get("/static/{name}", P.PUBLIC, web.static_file, bytes),
)

ROUTES = (
    *SERVER_ROUTES,
    *WORKSPACE_ROUTES,
    *BLOB_ROUTES,
    *RUN_ROUTES,
    *DATA_ROUTES,
    *PAGE_ROUTES,
)
