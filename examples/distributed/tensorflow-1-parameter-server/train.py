"""Train as TensorFlow 1 did: servers hold the weights, and each worker changes them by itself."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
print(task["type"], task["index"], "of", len(config["cluster"][task["type"]]), flush=True)
if task["type"] == "ps":
    server.join()  # never returns: the run is over when the workers are

run = Run.get_context()
chief = task["index"] == 0
source = np.random.RandomState(7)  # the same images in every process: ten kinds, 8x8
patterns = source.randn(10, 64)
all_labels = source.randint(10, size=2000)
all_images = patterns[all_labels] + source.randn(2000, 64)
own = slice(task["index"], None, len(config["cluster"]["worker"]))
all_images, all_labels = all_images[own], all_labels[own]

own_place = f"/job:worker/task:{task['index']}"
place = tf.train.replica_device_setter(cluster=cluster, worker_device=own_place)
with tf.device(place):
    images = tf.placeholder(tf.float32, (None, 64))
    labels = tf.placeholder(tf.int64, (None,))
    weights = tf.get_variable("weights", (64, 10), initializer=tf.zeros_initializer())
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.matmul(images, weights))
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)

supervisor = tf.train.Supervisor(
    is_chief=chief,
    logdir="outputs/model" if chief else None,
    global_step=step,
    recovery_wait_secs=1,  # how often a worker looks whether worker 0 has begun; else 30 s
)
# Without the filters a session waits for all other workers, for ever if one has ended already.
filters = ["/job:ps", own_place]
session = supervisor.prepare_or_wait_for_session(
    server.target, config=tf.ConfigProto(device_filters=filters)
)
losses = []
for number in range(1, args.steps + 1):
    some = np.random.choice(len(all_labels), 50)
    batch = {images: all_images[some], labels: all_labels[some]}
    now, _, reached = session.run([loss, train, step], batch)
    losses.append(now)
    if chief and number % 20 == 0:  # all workers log to one run: let one of them speak
        run.log("loss", float(np.mean(losses[-20:])))
if chief:
    supervisor.saver.save(session, "outputs/model/weights", global_step=step)
print("trained", args.steps, "steps; with those of others", reached, flush=True)
