"""The table of commands, and how their errors leave: what, why, fix, and an exit code."""

from collections.abc import Sequence

import click
from msgspec import structs

from runyard import __version__
from runyard.cli import console
from runyard.cli.compute import compute
from runyard.cli.data import data
from runyard.cli.deploy import deploy
from runyard.cli.doctor import doctor
from runyard.cli.environments import env
from runyard.cli.inspecting import list_runs, open_page, show
from runyard.cli.logs import logs
from runyard.cli.models import model
from runyard.cli.options import JSON_ASKED
from runyard.cli.services import service
from runyard.cli.serving import down, init, status, up
from runyard.cli.submitting import cancel, submit
from runyard.domain.errors import ErrorBody, RunyardError, from_text, to_wire
from runyard.sdk.exceptions import AzureMLException

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="runyard %(version)s")
def runyard() -> None:
    """Run training scripts on your own machines, and keep their code, data, metrics and outputs.

    \b
    Begin with:
      runyard init
      runyard submit train.py
      runyard logs -f latest
    """


for _command in (
    init,
    up,
    down,
    status,
    submit,
    list_runs,
    show,
    logs,
    cancel,
    open_page,
    doctor,
    env,
    data,
    compute,
    model,
    deploy,
    service,
):
    runyard.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Bugs leave as they are, with a traceback."""
    console.accept_any_text()
    meta: dict[str, object] = {}
    try:
        with runyard.make_context("runyard", list(arguments)) as context:
            meta = context.meta
            runyard.invoke(context)
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return 0  # `runyard ls | head`: the reader has seen enough
    except RunyardError as error:
        return _failed(str(error), to_wire(error), as_json=bool(meta.get(JSON_ASKED)))
    except AzureMLException as error:
        return _failed(error.message, _body_of(error), as_json=bool(meta.get(JSON_ASKED)))


def _body_of(error: AzureMLException) -> ErrorBody:
    if isinstance(error.inner_exception, RunyardError):
        return to_wire(error.inner_exception)
    return structs.replace(to_wire(from_text(error.message)), code=type(error).__name__)


def _failed(text: str, body: ErrorBody, *, as_json: bool) -> int:
    if as_json:
        told = structs.asdict(body)
        if not body.digests:  # most errors have nothing to do with contents
            del told["digests"]
        console.document({"error": told})
    console.error(text)
    return 1
