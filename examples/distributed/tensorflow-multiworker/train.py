"""Train with MultiWorkerMirroredStrategy: every worker has all weights, gradients are averaged."""

import argparse
import hashlib
import json
import os
import tempfile

import numpy as np
import tensorflow as tf

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--model-dir", default="outputs/model")
args = parser.parse_args()

BATCH = 200  # of all workers together

# Before anything else of TensorFlow: it reads TF_CONFIG and joins the others.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
run = Run.get_context()
print("worker", task["index"], "of", strategy.num_replicas_in_sync, flush=True)

source = np.random.RandomState(7)  # the same images in every process: ten kinds, 8x8
patterns = source.randn(10, 64)
labels = source.randint(10, size=1000)
images = (patterns[labels] + source.randn(1000, 64)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1000, seed=7)
options = tf.data.Options()  # each worker reads all, and keeps its part
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = strategy.experimental_distribute_dataset(data.batch(BATCH).with_options(options))


class Network(tf.Module):
    """Two layers. `aggregation` makes an update the average of what the workers want."""

    def __init__(self):
        super().__init__()
        start = tf.random.Generator.from_seed(7)
        self.weights = [
            tf.Variable(value, aggregation=tf.VariableAggregation.MEAN)
            for value in (
                start.normal((64, 32), stddev=0.1),
                tf.zeros(32),
                start.normal((32, 10), stddev=0.1),
                tf.zeros(10),
            )
        ]

    @tf.function(input_signature=[tf.TensorSpec((None, 64))])
    def __call__(self, images):
        w1, b1, w2, b2 = self.weights
        return tf.nn.relu(images @ w1 + b1) @ w2 + b2


with strategy.scope():
    network = Network()


@tf.function
def train(images, labels):
    """One step on all workers; the mean of their losses."""

    def step(images, labels):
        with tf.GradientTape() as tape:
            scores = network(images)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(each)
        for weight, gradient in zip(
            network.weights, tape.gradient(loss, network.weights), strict=True
        ):
            weight.assign_sub(0.2 * gradient)
        return loss

    return strategy.reduce("MEAN", strategy.run(step, (images, labels)), axis=None)


for _ in range(args.epochs):
    losses = [float(train(*batch)) for batch in batches]
    if task["index"] == 0:  # all workers log to one run: let one of them speak
        run.log("loss", sum(losses) / len(losses))

weights = b"".join(weight.numpy().tobytes() for weight in network.weights)
print("weights", hashlib.sha256(weights).hexdigest()[:16], flush=True)
# Every worker has to save, and only worker 0's is kept.
tf.saved_model.save(network, args.model_dir if task["index"] == 0 else tempfile.mkdtemp())
