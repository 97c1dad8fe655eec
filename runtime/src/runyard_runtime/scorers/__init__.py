"""What answers requests: one file for each way to score, and the table of them.

A scorer is a module with `load(spec)`, which returns an object with `hello()` and
`answer(batch)`; see `base`. It is imported only where it is asked for, since most of them need a
framework that only the model's own environment has.
"""

import importlib

from runyard_runtime.scorers.base import CannotServe

SCORERS = {
    "script": "runyard_runtime.scorers.script",
    "sklearn": "runyard_runtime.scorers.sklearn",
    "onnx": "runyard_runtime.scorers.onnx",
    "tensorflow": "runyard_runtime.scorers.tensorflow",
    "torchscript": "runyard_runtime.scorers.torchscript",
    "keras": "runyard_runtime.scorers.keras",
}


def load(spec):
    """The scorer that `spec` asks for, its model loaded and ready."""
    name = spec.get("scorer")
    if name not in SCORERS:
        raise CannotServe("There is no scorer %r; there are: %s." % (name, ", ".join(SCORERS)))
    return importlib.import_module(SCORERS[name]).load(spec)
