"""Train a Keras network with Horovod: every rank has a part of the data, gradients are averaged."""

import hashlib

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from azureml.core import Run

hvd.init()
run = Run.get_context()
print("rank", hvd.rank(), "of", hvd.size(), "local", hvd.local_rank(), flush=True)
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

source = np.random.RandomState(7)  # the same images in every process: ten kinds, 8x8
patterns = source.randn(10, 64)
labels = source.randint(10, size=2000)
images = (patterns[labels] + source.randn(2000, 64)).astype("float32")

tf.keras.utils.set_random_seed(hvd.rank())  # different weights at the start, until the broadcast
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, "relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05 * hvd.size())),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)


class LogToRun(tf.keras.callbacks.Callback):
    """All ranks log to one run: rank 0 speaks, of the average."""

    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 0:
            run.log("loss", float(logs["loss"]))


model.fit(
    images[hvd.rank() :: hvd.size()],
    labels[hvd.rank() :: hvd.size()],
    batch_size=50,
    epochs=5,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        LogToRun(),
    ],
)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print("weights", hashlib.sha256(weights).hexdigest()[:16], flush=True)
if hvd.rank() == 0:
    model.save("outputs/model")
