"""In a model's environment: `make_model.py KIND FOLDER` fits a small model and saves it there."""

import sys
from pathlib import Path


def sklearn_model(folder: Path) -> None:
    """A scaler and a ridge regression, as joblib saves them."""
    import joblib

    joblib.dump(_pipeline(), folder / "model.joblib")


def mlflow_model(folder: Path) -> None:
    """The same, as MLflow saves it; the pickle is the one that `sklearn_model` made."""
    import joblib
    import mlflow.sklearn

    model = joblib.load(folder / "model.joblib")
    mlflow.sklearn.save_model(model, folder / "mlflow", serialization_format="cloudpickle")


def onnx_model(folder: Path) -> None:
    """A network of two layers."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_diabetes
    from sklearn.neural_network import MLPRegressor

    data, target = load_diabetes(return_X_y=True)
    data = data.astype("float32")
    model = MLPRegressor(hidden_layer_sizes=(128, 128), max_iter=20, random_state=0)
    model.fit(data, target)
    (folder / "model.onnx").write_bytes(to_onnx(model, data[:1]).SerializeToString())


def tensorflow_model(folder: Path) -> None:
    """A network of two layers, as a SavedModel."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((10,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.export(folder / "model")


def _pipeline() -> object:
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, target = load_diabetes(return_X_y=True)
    return make_pipeline(StandardScaler(), Ridge()).fit(data, target)


if __name__ == "__main__":
    kind, target_folder = sys.argv[1], Path(sys.argv[2])
    {
        "sklearn": sklearn_model,
        "mlflow": mlflow_model,
        "onnx": onnx_model,
        "tensorflow": tensorflow_model,
    }[kind](target_folder)
