# mypy: ignore-errors
"""Makes the models that the tests of scoring serve: python make_models.py FOLDER."""

import os
import sys
import warnings

import joblib
import keras
import numpy as np
import onnx
import pandas as pd
import tensorflow as tf
import torch
from skl2onnx import to_onnx
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

warnings.simplefilter("ignore")
keras.utils.set_random_seed(7)
torch.manual_seed(7)


def scikit_learn():
    x, y = load_iris(return_X_y=True)
    joblib.dump(LogisticRegression(max_iter=500).fit(x, y), "iris.pkl")
    joblib.dump(LinearRegression().fit(x[:, :3], x[:, 3]), "line.joblib")
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    joblib.dump(LogisticRegression(max_iter=500).fit(frame, y), "named.pkl")
    joblib.dump(HistGradientBoostingClassifier(max_iter=5).fit(x, y), "missing.pkl")
    mixed = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "colour": ["red", "blue", "red", "blue"]})
    columns = ColumnTransformer(
        [("number", StandardScaler(), ["size"]), ("word", OneHotEncoder(), ["colour"])]
    )
    joblib.dump(
        make_pipeline(columns, LogisticRegression()).fit(mixed, ["no", "yes", "no", "yes"]),
        "mixed.pkl",
    )
    texts = ["good fine", "bad awful", "good great", "bad poor"]
    joblib.dump(
        make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, [1, 0, 1, 0]), "text.pkl"
    )
    joblib.dump({"weights": [1, 2]}, "weights.pkl")

    converted = to_onnx(LogisticRegression(max_iter=500).fit(x, y), x[:1].astype(np.float32))
    onnx.save(converted, "iris.onnx")


def onnx_by_hand():
    """sum = a + b for rows of two; the same for exactly one row; upper case text is left out."""
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    for name, rows in (("sum.onnx", "rows"), ("one.onnx", 1)):
        graph = helper.make_graph(
            [helper.make_node("Add", ["a", "b"], ["sum"])],
            "sum",
            [helper.make_tensor_value_info(one, real, [rows, 2]) for one in ("a", "b")],
            [helper.make_tensor_value_info("sum", real, [rows, 2])],
        )
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), name)


class Arithmetic(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def twice(self, x):
        return {"doubled": 2.0 * x}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="a"),
            tf.TensorSpec([None], tf.int64, name="b"),
        ]
    )
    def both(self, a, b):
        return {"sum": a + b, "product": a * b}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def shout(self, text):
        return {"loud": tf.strings.upper(text), "raw_bytes": text}


def tensorflow():
    module = Arithmetic()
    signatures = {"serving_default": module.twice, "both": module.both, "shout": module.shout}
    tf.saved_model.save(module, "arithmetic/model/1", signatures=signatures)
    tf.saved_model.save(tf.Module(), "silent")

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        weight = tf.compat.v1.get_variable("w", initializer=[[1.0], [10.0]], use_resource=False)
        y = tf.matmul(x, weight)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, "old", {"x": x}, {"y": y})


def pytorch():
    class Pair(torch.nn.Module):
        def forward(self, x):
            return x * 2, x.sum(dim=1)

    torch.jit.trace(Pair().eval(), torch.ones(2, 3)).save("pair.pt")
    embedding = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten())
    torch.jit.trace(embedding.eval(), torch.ones(2, 3, dtype=torch.int64)).save("embedding.pt")
    torch.save(embedding.state_dict(), "state.pt")


def keras_file():
    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2, use_bias=False)])
    model.layers[-1].set_weights([np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])])
    model.save("dense.keras")
    model.save("dense.h5")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    for make in (scikit_learn, onnx_by_hand, tensorflow, pytorch, keras_file):
        make()
