"""Submit src/train.py, follow it, and fetch the model. Run `runyard init` in this folder first."""

import sys
from pathlib import Path

from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace

ws = Workspace.from_config()

# Nothing to build: the job uses the Python that runs this file.
env = Environment("this-python")
env.python.user_managed_dependencies = True
env.python.interpreter_path = sys.executable

src = ScriptRunConfig(
    source_directory=str(Path(__file__).parent / "src"),
    script="train.py",
    arguments=["--lr", 0.2],
    environment=env,
)
run = Experiment(ws, "line").submit(src)
run.wait_for_completion(show_output=True)

metrics = run.get_metrics()
print(f"y = {metrics['slope']:.2f} x + {metrics['intercept']:.2f}, loss {metrics['loss'][-1]:.4f}")
run.download_files(prefix="outputs/model", output_directory="model", append_prefix=False)
print("the model is in ./model; the run's page is", run.get_portal_url())
