"""Train a network with Keras on TensorFlow, and write it as outputs/digits.onnx."""

import os
import warnings

import keras
from digits import check, keep_unseen, load

keras.utils.set_random_seed(7)
train_x, test_x, train_y, test_y = load()
model = keras.Sequential(
    [
        keras.Input((64,), name="image"),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_x, train_y, epochs=15, batch_size=32, verbose=2)
expected = model.predict(test_x, verbose=0)
print(f"accuracy on images it has never seen: {(expected.argmax(1) == test_y).mean():.4f}")

os.makedirs("outputs", exist_ok=True)
path = os.path.join("outputs", "digits.onnx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # of tf2onnx, about numpy
    model.export(path, format="onnx", verbose=False)  # any number of rows, as Input((64,)) says
check(path, test_x, expected)
keep_unseen(test_x, test_y)
