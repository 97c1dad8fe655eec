"""Train with TensorFlow 2's ParameterServerStrategy: worker 0 coordinates, the others compute.

TensorFlow 2 wants a task of its own, the chief, to hand out the work. v1 has workers and servers
only, so worker 0 becomes the chief, and worker 1 the first of the workers.
"""

import argparse
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

DONE = "done"  # a file that the chief writes at the end

config = json.loads(os.environ["TF_CONFIG"])
chief, *workers = config["cluster"]["worker"]
kind, index = config["task"]["type"], config["task"]["index"]
if kind == "worker":
    kind, index = ("chief", 0) if index == 0 else ("worker", index - 1)
cluster = tf.train.ClusterSpec({"chief": [chief], "worker": workers, "ps": config["cluster"]["ps"]})
print(kind, index, flush=True)
if kind != "chief":
    server = tf.distribute.Server(cluster, job_name=kind, task_index=index, protocol="grpc")
    if kind == "ps":
        server.join()  # never returns: servers are ended when the workers are done
    while not os.path.exists(DONE):  # all nodes see one working directory
        time.sleep(0.5)
    sys.exit()

run = Run.get_context()
strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type=kind, task_id=index, rpc_layer="grpc"
    )
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def batches():
    """Ten kinds of 8x8 images, the same ones in every process."""
    source = np.random.RandomState(7)
    patterns = source.randn(10, 64)
    labels = source.randint(10, size=2000)
    images = (patterns[labels] + source.randn(2000, 64)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2000).repeat().batch(50)


with strategy.scope():
    weights = tf.Variable(tf.zeros((64, 10)))


@tf.function
def step(iterator):
    """One step of one worker, on the weights as they are by now."""
    images, labels = next(iterator)
    with tf.GradientTape() as tape:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
        loss = tf.reduce_mean(each)
    weights.assign_sub(0.05 * tape.gradient(loss, weights))
    return loss


data = iter(coordinator.create_per_worker_dataset(batches))
for _ in range(args.epochs):
    losses = [coordinator.schedule(step, args=(data,)) for _ in range(40)]
    coordinator.join()
    run.log("loss", float(np.mean([loss.fetch() for loss in losses])))

os.makedirs("outputs", exist_ok=True)
np.save("outputs/weights.npy", weights.numpy())
print("trained by", len(workers), "workers", flush=True)
open(DONE, "w").close()
