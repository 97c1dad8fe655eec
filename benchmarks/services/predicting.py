"""A model of a folder as a function from rows to numbers, without any server."""

from collections.abc import Callable
from pathlib import Path

Rows = list[list[float]]


def load(kind: str, folder: Path) -> Callable[[Rows], list[object]]:
    """What a bare script does: import the framework, load the file, predict."""
    import numpy

    if kind == "sklearn":
        import joblib

        model = joblib.load(folder / "model.joblib")
        return lambda rows: model.predict(numpy.array(rows)).tolist()
    if kind == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(
            folder / "model.onnx", providers=["CPUExecutionProvider"]
        )
        name = session.get_inputs()[0].name
        return lambda rows: session.run(None, {name: numpy.array(rows, "float32")})[0].tolist()
    import tensorflow

    loaded = tensorflow.saved_model.load(str(folder / "model"))
    call = loaded.signatures["serving_default"]
    key = next(iter(call.structured_input_signature[1]))

    def predict(rows: Rows) -> list[object]:
        found = call(**{key: tensorflow.constant(numpy.array(rows, "float32"))})
        result: list[object] = next(iter(found.values())).numpy().tolist()
        return result

    return predict
