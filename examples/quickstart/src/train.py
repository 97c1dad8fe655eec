"""Train a dense network on scikit-learn's handwritten digits. Runs as a job, and by hand too."""

import argparse
import json

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--learning-rate", type=float, default=0.003)
args = parser.parse_args()

run = Run.get_context()
tf.keras.utils.set_random_seed(7)

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.2, random_state=7, stratify=labels
)
print(f"{len(train_x)} images to learn from, {len(test_x)} to test on")

model = tf.keras.Sequential(
    [
        tf.keras.Input((64,)),
        tf.keras.layers.Dense(args.hidden, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.Adam(args.learning_rate),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)


class LogToRun(tf.keras.callbacks.Callback):
    """Logs what Keras knows at the end of every epoch."""

    def on_epoch_end(self, epoch, logs=None):
        run.log("loss", logs["loss"])
        run.log("accuracy", logs["val_accuracy"])
        print(
            f"epoch {epoch + 1:2}  loss {logs['loss']:.4f}  accuracy {logs['val_accuracy']:.4f}",
            flush=True,
        )


model.fit(
    train_x,
    train_y,
    epochs=args.epochs,
    batch_size=32,
    validation_data=(test_x, test_y),
    callbacks=[LogToRun()],
    verbose=0,
)

_, accuracy = model.evaluate(test_x, test_y, verbose=0)
run.log("final_accuracy", accuracy)
# What lies under ./outputs when the script ends belongs to the run.
model.export("outputs/model", verbose=False)
# One image of each digit that was not trained on, to try the model with later.
which = [(test_y == digit).nonzero()[0][-1] for digit in range(10)]
with open("outputs/unseen.json", "w") as kept:
    json.dump({"images": test_x[which].tolist(), "labels": test_y[which].tolist()}, kept)
print(f"accuracy on images it has never seen: {accuracy:.4f}")
