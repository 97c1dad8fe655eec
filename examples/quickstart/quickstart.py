"""From nothing to a trained network: submit a script through the v1 API, follow it, fetch it.

`make quickstart` runs this. It keeps its workspace configuration and the fetched model in
./quickstart-run; the runs themselves are kept where all runs are, in RUNYARD_HOME.
"""

import sys
from pathlib import Path

from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace

HERE = Path(__file__).parent
KEPT = Path("quickstart-run")


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


def command() -> str:
    """How to call `runyard` from here."""
    beside = Path(sys.executable).parent / "runyard"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else "runyard"


def main() -> int:
    """Exit code 0 if the network was trained."""
    ws = workspace()
    config = ScriptRunConfig(
        source_directory=str(HERE / "src"),
        script="train.py",
        arguments=["--epochs", 15, "--learning-rate", 0.003],
        environment=environment(),
    )
    print("Submitting src/train.py. The first time its environment (TensorFlow) is built,")
    print("which takes a minute or two; after that it starts at once.\n")
    run = Experiment(ws, "digits").submit(config)
    run.wait_for_completion(show_output=True, raise_on_error=False)
    if run.get_status() != "Completed":
        print(f"The run is {run.get_status()}; what went wrong is above.", file=sys.stderr)
        return 1

    model = KEPT / "model"
    run.download_files(prefix="outputs/model", output_directory=str(model), append_prefix=False)
    metrics = run.get_metrics()
    print("Done.")
    print(f"  accuracy   {metrics['final_accuracy']:.4f}")
    print(
        f"  metrics    loss {metrics['loss'][0]:.3f} → {metrics['loss'][-1]:.3f}, "
        f"accuracy {metrics['accuracy'][0]:.3f} → {metrics['accuracy'][-1]:.3f} "
        f"in {len(metrics['loss'])} epochs"
    )
    print(f"  model      {model}/ (a copy; the original is kept with the run)")
    print(f"  run        {run.id}")
    print(f"  page       {run.get_portal_url()}")
    print("\nTry next:")
    print(f"  {command()} ls                   every run so far")
    print(f"  {command()} logs latest          what the last one printed")
    print("  make quickstart                      again; it takes seconds now")
    print("Then change examples/quickstart/src/train.py, and run it again.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
