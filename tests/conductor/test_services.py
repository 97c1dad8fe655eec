"""What users may do to services, over a real store."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runyard.conductor import runs, services
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import Conflict, Invalid, NotFound, Unsupported
from runyard.domain.files import FileEntry, Manifest, encode_manifest, manifest_digest
from runyard.domain.models import ModelRecord
from runyard.domain.runs import LauncherSpec, RunSpec, ScriptSpec
from runyard.domain.services import (
    AccessPatch,
    ServiceAccess,
    ServiceAuth,
    ServiceDraft,
    ServicePatch,
    ServiceRecord,
    ServiceSpec,
    ServiceState,
    SpecPatch,
)
from runyard.domain.workspaces import WorkspaceRecord
from runyard.stores import open_store
from runyard.stores.base import Store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)
SECRET = b"a secret for tests only"
YARD = WorkspaceRecord(id="w1", name="yard", created=NOW)
TRAINED_IN = EnvironmentSpec(name="training", pip=("scikit-learn==1.5.0",))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    opened.records.insert(YARD)
    yield opened
    opened.close()


def keep_model(store: Store, id: str = "m1", **more: Any) -> ModelRecord:
    record = ModelRecord(
        id=id, workspace="yard", name=id, manifest=(), size=0, created=NOW, framework="ScikitLearn"
    )
    return store.records.insert(msgspec.structs.replace(record, **more))


def keep_run(store: Store, *lock: str) -> None:
    """A run whose environment was built, with these packages."""
    script = ScriptSpec(
        arguments=("train.py",), snapshot="s", environment=TRAINED_IN, launcher=LauncherSpec()
    )
    spec = RunSpec(workspace="yard", experiment="e", id="run-1", script=script)
    use = EnvironmentUse(key="k", interpreter="python", python="3.11", lock=lock)
    run = msgspec.structs.replace(runs.new_run(spec, NOW), environment=use)
    store.records.insert(run)


def keep_script(store: Store) -> str:
    tree: Manifest = (FileEntry("score.py", "0" * 64, 1),)
    digest = manifest_digest(tree)
    store.blobs.put(digest, [encode_manifest(tree)])
    return digest


def create(store: Store, name: str = "digits", **more: Any) -> ServiceRecord:
    draft = ServiceDraft(spec=more.pop("spec", ServiceSpec(models=("m1",))), **more)
    return services.create_service(
        store, YARD, name, draft, secret=SECRET, host="127.0.0.1", now=NOW
    )


def coming_spec(service: ServiceRecord) -> ServiceSpec:
    assert service.coming is not None
    return service.coming.spec


def test_a_model_is_served_where_it_was_trained_if_that_holds_its_framework(store: Store) -> None:
    keep_run(store, "numpy==2.0.0", "scikit-learn==1.5.0")
    keep_model(store, run="run-1")
    spec = coming_spec(create(store))
    assert (spec.scorer, spec.environment) == ("sklearn", TRAINED_IN)


@pytest.mark.parametrize("lock", [(), ("numpy==2.0.0",)])
def test_else_an_environment_is_made_of_the_registered_version(
    store: Store, lock: tuple[str, ...]
) -> None:
    keep_run(store, *lock)
    keep_model(store, run="run-1", framework_version="1.5.0")
    environment = coming_spec(create(store)).environment
    assert environment is not None
    assert "scikit-learn==1.5.0" in environment.pip


def test_a_model_whose_run_is_gone_is_served_all_the_same(store: Store) -> None:
    keep_model(store, run="gone")
    environment = coming_spec(create(store)).environment
    assert environment is not None
    assert "scikit-learn" in environment.pip


def test_a_script_runs_where_its_model_was_trained_or_with_its_framework(store: Store) -> None:
    spec = ServiceSpec(models=("m1",), entry_script="score.py", snapshot=keep_script(store))
    keep_run(store, "numpy==2.0.0")
    keep_model(store, run="run-1")
    assert coming_spec(create(store, "trained", spec=spec)).environment == TRAINED_IN
    keep_model(store, "m2", framework="Onnx")
    other = msgspec.structs.replace(spec, models=("m2",))
    environment = coming_spec(create(store, "framework", spec=other)).environment
    assert environment is not None
    assert "onnxruntime" in environment.pip
    none = msgspec.structs.replace(spec, models=())
    environment = coming_spec(create(store, "no-model", spec=none)).environment
    assert environment is not None
    assert environment.pip == ("azureml-defaults",)
    own = msgspec.structs.replace(spec, environment=EnvironmentSpec(name="own"))
    assert coming_spec(create(store, "own-env", spec=own)).environment == own.environment


def test_services_run_outside_of_containers(store: Store) -> None:
    keep_model(store)
    spec = ServiceSpec(models=("m1",), entry_script="score.py", snapshot=keep_script(store))
    packed = EnvironmentSpec(name="e", pip=("numpy",), docker=True, base_image="my/image:1")
    made = coming_spec(create(store, spec=msgspec.structs.replace(spec, environment=packed)))
    assert made.environment == msgspec.structs.replace(packed, docker=False)
    inside = msgspec.structs.replace(packed, user_managed=True)
    with pytest.raises(Unsupported, match="cannot serve"):
        create(store, "other", spec=msgspec.structs.replace(spec, environment=inside))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"models": ("m1",), "replicas": 0}, "0 replicas"),
    ({"models": ()}, "one model, not 0"),
    ({"models": ("m1", "m1")}, "one model, not 2"),
    ({"models": ("m1",), "entry_script": "score.py"}, "needs its source tree"),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_what_cannot_be_served_is_refused(store: Store, spec: dict[str, Any], words: str) -> None:
    keep_model(store)
    with pytest.raises(Invalid, match=words):
        create(store, spec=ServiceSpec(**spec))
    assert services.list_services(store, None) == []


def test_a_request_that_is_repeated_makes_one_service(store: Store) -> None:
    keep_model(store)
    first = create(store, uid="ab" * 16)
    assert create(store, uid="ab" * 16) == first
    assert first.made == 1
    with pytest.raises(Conflict, match="exists already"):
        create(store, uid="cd" * 16)
    for uid in ("../../x", "", "AB" * 16):
        with pytest.raises(Invalid, match="not a uid"):
            create(store, "another-one", uid=uid)


def test_a_model_must_be_there_and_in_the_workspace(store: Store) -> None:
    with pytest.raises(NotFound):
        create(store)
    keep_model(store, workspace="other")
    with pytest.raises(Invalid, match="another workspace"):
        create(store)


def test_a_new_revision_is_tried_while_the_old_one_serves(store: Store) -> None:
    keep_model(store)
    made = create(store)
    assert (made.state, made.made) == (ServiceState.TRANSITIONING, 1)
    serving = msgspec.structs.replace(
        made, serving=made.coming, coming=None, state=ServiceState.HEALTHY, waiting=""
    )
    store.records.replace(serving)
    patch = ServicePatch(spec=SpecPatch(replicas=2), description="more")
    changed = services.update_service(store, YARD, "digits", patch, LATER)
    assert changed.state is ServiceState.TRANSITIONING  # at once: who waits must not miss it
    assert changed.serving == made.coming
    assert changed.coming is not None
    assert (changed.coming.number, changed.made, changed.description) == (2, 2, "more")


def test_a_revision_that_was_being_tried_leaves_for_the_next_one(store: Store) -> None:
    keep_model(store)
    made = create(store)
    assert made.coming is not None
    started = msgspec.structs.replace(made.coming, run="workers-1")
    store.records.replace(msgspec.structs.replace(made, coming=started))
    again = services.restart_service(store, YARD, "digits", LATER)
    assert again.leaving == (started,)
    assert again.coming is not None
    assert again.coming.number == 2


def test_a_service_keeps_its_port_and_no_two_have_the_same(store: Store) -> None:
    keep_model(store)
    first = create(store, "first-one")
    with pytest.raises(Conflict, match=f"Port {first.port} is in use"):
        create(store, "second-one", access=ServiceAccess(port=first.port))
    patch = ServicePatch(access=AccessPatch(port=first.port + 1))
    with pytest.raises(Invalid, match="keeps its port"):
        services.update_service(store, YARD, "first-one", patch, LATER)
    with pytest.raises(Invalid, match="keeps its port"):
        create(store, "first-one", overwrite=True, access=ServiceAccess(port=first.port + 1))
    same = create(store, "first-one", overwrite=True, access=ServiceAccess(port=first.port))
    assert (same.port, same.made) == (first.port, 2)


def test_a_service_that_is_being_deleted_cannot_be_changed(store: Store) -> None:
    keep_model(store)
    made = create(store)
    services.delete_service(store, YARD, "digits", LATER)
    with pytest.raises(Conflict, match="being deleted"):
        create(store, overwrite=True)
    with pytest.raises(Conflict, match="being deleted"):
        update(store, description="d")
    with pytest.raises(Conflict, match="being deleted"):
        services.restart_service(store, YARD, "digits", LATER)
    with pytest.raises(Conflict, match="being deleted"):
        services.set_key(store, made, "primary", None, SECRET)


def update(store: Store, **what: Any) -> ServiceRecord:
    return services.update_service(store, YARD, "digits", ServicePatch(**what), LATER)


def test_a_change_leaves_alone_what_it_does_not_name(store: Store) -> None:
    keep_model(store)
    keep_model(store, "m2")
    create(store, tags={"a": "1", "b": "2"})
    update(store, access=AccessPatch(key_auth=True))
    update(store, access=AccessPatch(timeout_seconds=5.0))
    update(store, set_tags={"c": "3"}, spec=SpecPatch(models=("m2",)))
    last = update(store, remove_tags=("a",), spec=SpecPatch(replicas=3))
    assert (last.access.auth, last.access.timeout_seconds) == (ServiceAuth.KEY, 5.0)
    assert last.tags == {"b": "2", "c": "3"}
    assert (coming_spec(last).models, coming_spec(last).replicas) == (("m2",), 3)


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        (ServiceAuth.TOKEN, AccessPatch(key_auth=False), ServiceAuth.TOKEN),
        (ServiceAuth.KEY, AccessPatch(token_auth=False), ServiceAuth.KEY),
        (ServiceAuth.KEY, AccessPatch(key_auth=False), ServiceAuth.NONE),
        (ServiceAuth.TOKEN, AccessPatch(token_auth=False), ServiceAuth.NONE),
        (ServiceAuth.NONE, AccessPatch(key_auth=True), ServiceAuth.KEY),
        (ServiceAuth.KEY, AccessPatch(key_auth=False, token_auth=True), ServiceAuth.TOKEN),
        (ServiceAuth.KEY, AccessPatch(auth=ServiceAuth.NONE), ServiceAuth.NONE),
        (ServiceAuth.KEY, AccessPatch(queue=3), ServiceAuth.KEY),
    ],
)
def test_what_callers_show_changes_only_as_it_is_said(
    store: Store, before: ServiceAuth, patch: AccessPatch, after: ServiceAuth
) -> None:
    keep_model(store)
    create(store, access=ServiceAccess(auth=before))
    assert update(store, access=patch).access.auth is after


def test_other_code_or_another_model_gets_an_environment_of_its_own(store: Store) -> None:
    keep_model(store)
    keep_model(store, "m2", framework="Onnx")
    first = create(store)
    assert coming_spec(update(store, spec=SpecPatch(cores=2.0))) == msgspec.structs.replace(
        coming_spec(first), cores=2.0
    )
    other = coming_spec(update(store, spec=SpecPatch(models=("m2",)))).environment
    assert other is not None
    assert "onnxruntime" in other.pip
    own = EnvironmentSpec(name="own")
    code = SpecPatch(entry_script="score.py", snapshot=keep_script(store), environment=own)
    update(store, spec=code)
    assert coming_spec(update(store, spec=SpecPatch(models=("m1",)))).environment == own


def test_requests_that_are_repeated_make_one_revision(store: Store) -> None:
    keep_model(store)
    create(store, uid="ab" * 16)
    overwritten = [create(store, uid="cd" * 16, overwrite=True) for _ in range(2)]
    assert [one.made for one in overwritten] == [2, 2]
    changed = [update(store, request="one", spec=SpecPatch(replicas=2)) for _ in range(2)]
    assert [one.made for one in changed] == [3, 3]
    assert update(store, request="two", spec=SpecPatch(replicas=2)).made == 4


def test_a_uid_is_that_of_one_service(store: Store) -> None:
    keep_model(store)
    create(store, uid="ab" * 16)
    with pytest.raises(Conflict, match="another service"):
        create(store, "another-one", uid="ab" * 16)


def test_a_service_is_not_started_again_without_its_model(store: Store) -> None:
    model = keep_model(store)
    made = create(store)
    store.records.replace(msgspec.structs.replace(made, failed=made.coming, coming=None))
    store.records.delete(model)
    with pytest.raises(NotFound, match="m1"):
        services.restart_service(store, YARD, "digits", LATER)


def test_keys_that_cannot_be_read_are_made_anew_when_it_is_deployed_again(store: Store) -> None:
    keep_model(store)
    made = create(store, primary_key="one")
    with pytest.raises(Conflict, match="cannot be read"):
        services.get_keys(made, b"another secret")
    draft = ServiceDraft(spec=ServiceSpec(models=("m1",)), overwrite=True, secondary_key="two")
    after = services.create_service(
        store, YARD, "digits", draft, secret=b"another secret", host="127.0.0.1", now=LATER
    )
    keys = services.get_keys(after, b"another secret")
    assert keys.primary != "one"
    assert keys.secondary == "two"
    assert services.delete_service(store, YARD, "digits", LATER).deleting


def test_the_services_of_a_model_are_named_once(store: Store) -> None:
    model = keep_model(store)
    other = keep_model(store, "m2")
    made = create(store)
    assert made.coming is not None
    both = msgspec.structs.replace(made, serving=made.coming)
    store.records.replace(both)
    assert [one.name for one in services.services_of_model(store, model)] == ["digits"]
    assert services.services_of_model(store, other) == []


def test_keys_are_sealed_and_changed_one_at_a_time(store: Store) -> None:
    keep_model(store)
    made = create(store, primary_key="one", secondary_key="two")
    assert "one" not in made.secret
    services.set_key(store, made, "primary", None, SECRET)
    after = services.load_service(store, YARD, "digits")
    keys = services.get_keys(after, SECRET)
    assert keys.primary != "one"
    assert keys.secondary == "two"
    with pytest.raises(Invalid, match="third"):
        services.set_key(store, after, "third", None, SECRET)


def test_a_service_that_is_not_there_is_named_with_those_that_are(store: Store) -> None:
    keep_model(store)
    create(store)
    with pytest.raises(NotFound) as caught:
        services.load_service(store, YARD, "digit")
    assert "digits" in caught.value.why
