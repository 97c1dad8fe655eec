"""From nothing to a web service: train a network, register it, deploy it, ask it; all by v1's API.

`make quickstart` runs this. It keeps its workspace configuration and the fetched files in
./quickstart-run; runs, models and the service are kept where all are, in RUNYARD_HOME. A second
run trains anew, registers the next version, and updates the service.
"""

import json
import sys
from pathlib import Path

from azureml.core import Environment, Experiment, Model, Run, ScriptRunConfig, Webservice, Workspace
from azureml.core.resource_configuration import ResourceConfiguration
from azureml.exceptions import WebserviceException

HERE = Path(__file__).parent
KEPT = Path("quickstart-run")
SERVICE = "quickstart-digits"
SHADES = " .:-=+*#%@"


def workspace() -> Workspace:
    """The quickstart's workspace; made the first time."""
    if not (KEPT / ".azureml" / "config.json").exists():
        KEPT.mkdir(exist_ok=True)
        Workspace.create("quickstart", exist_ok=True).write_config(path=str(KEPT))
    return Workspace.from_config(path=str(KEPT))


def environment() -> Environment:
    """Python with TensorFlow and scikit-learn, built by the platform and kept."""
    env = Environment.from_conda_specification("quickstart", str(HERE / "conda_dependencies.yml"))
    # The file says 3.11; whoever runs another Python has that one, and no network is needed for it.
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    env.python.conda_dependencies.set_python_version(running)
    # Spares us TensorFlow's start-up notices.
    env.environment_variables = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return env


def train(ws: Workspace) -> Run:
    """A finished run of src/train.py."""
    config = ScriptRunConfig(
        source_directory=str(HERE / "src"),
        script="train.py",
        arguments=["--epochs", 15, "--learning-rate", 0.003],
        environment=environment(),
    )
    run = Experiment(ws, "digits").submit(config)
    run.wait_for_completion(show_output=True, raise_on_error=False)
    return run


def deploy(ws: Workspace, run: Run) -> tuple[Model, Webservice]:
    """The model that the run made, registered, and the service that answers with it."""
    model = run.register_model(
        model_name="digits",
        model_path="outputs/model",
        model_framework=Model.Framework.TENSORFLOW,
        model_framework_version="2.21",
        resource_configuration=ResourceConfiguration(cpu=1, memory_in_gb=0.5),
    )
    service = Model.deploy(ws, SERVICE, [model], overwrite=True)
    service.wait_for_deployment(show_output=True)
    return model, service


def score(service: Webservice, images: list[list[float]]) -> list[int]:
    """What the service takes the images for."""
    answer = service.run(json.dumps({"instances": images}))
    return [row.index(max(row)) for row in answer["predictions"]]


def show(images: list[list[float]], labels: list[int], found: list[int]) -> None:
    """The images side by side, and below them what they are and what they were taken for."""
    for line in range(8):
        rows = (image[8 * line : 8 * line + 8] for image in images)
        drawn = ("".join(SHADES[round(9 * pixel)] for pixel in row) for row in rows)
        print("    " + " ".join(drawn).rstrip())
    print("    " + " ".join(f"{label:^8}" for label in labels).rstrip() + "  is")
    print("    " + " ".join(f"{label:^8}" for label in found).rstrip() + "  the service says")


def command() -> str:
    """How to call `runyard` from here."""
    beside = Path(sys.executable).parent / "runyard"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else "runyard"


def main() -> int:
    """Exit code 0 if the network was trained and the service knows most digits."""
    ws = workspace()
    print("1. Train: src/train.py is submitted. The first time its environment (TensorFlow) is")
    print("   built, which takes a minute or two; after that it starts at once.\n")
    run = train(ws)
    if run.get_status() != "Completed":
        print(f"The run is {run.get_status()}; what went wrong is above.", file=sys.stderr)
        return 1
    run.download_files(
        prefix="outputs/model", output_directory=str(KEPT / "model"), append_prefix=False
    )
    run.download_file("outputs/unseen.json", output_file_path=str(KEPT / "unseen.json"))
    metrics = run.get_metrics()

    print("\n2. Register and deploy: the model becomes a web service, without more code. It loads")
    print("   TensorFlow in the environment that it was trained in.\n")
    try:
        model, service = deploy(ws, run)
    except WebserviceException as error:
        print(error.message, file=sys.stderr)
        return 1

    print("\n3. Score: images that the network has never seen are sent to the service.\n")
    unseen = json.loads((KEPT / "unseen.json").read_text())
    found = score(service, unseen["images"])
    show(unseen["images"], unseen["labels"], found)
    right = sum(map(int.__eq__, found, unseen["labels"]))

    body = KEPT / "request.json"
    body.write_text(json.dumps({"instances": unseen["images"]}))
    print("\nDone.")
    print(f"  accuracy   {metrics['final_accuracy']:.4f} on all test images; {right} of 10 here")
    print(
        f"  metrics    loss {metrics['loss'][0]:.3f} → {metrics['loss'][-1]:.3f}, "
        f"accuracy {metrics['accuracy'][0]:.3f} → {metrics['accuracy'][-1]:.3f} "
        f"in {len(metrics['loss'])} epochs"
    )
    print(f"  model      {model.name}:{model.version}; a copy is in {KEPT}/model")
    print(f"  run        {run.id}")
    print(f"  page       {run.get_portal_url()}")
    print(f"  service    {service.scoring_uri}")
    runyard, there = command(), f"{SERVICE} --workspace {ws.name}"
    print("\nTry next:")
    print(f"  curl -d @{body} {service.scoring_uri}")
    print(f"  {runyard} service logs {there}")
    print(f"  {runyard} logs latest")
    print("  make quickstart    again: it takes seconds, and updates the service")
    print(f"The service goes on until you end it: {runyard} service rm {there}")
    return 0 if right > 5 else 1


if __name__ == "__main__":
    sys.exit(main())
