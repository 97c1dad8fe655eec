"""In a job: `run.log` beside a json.dumps and a flushed write of the same line, in turn.

ROUNDS and CALLS: the calls of one round are short against a time slice of the kernel. Were they
not, a busy machine would interrupt the slower side more often and flatter the quicker one.
"""

import json
import os
import sys
import time

from azureml.core import Run

run = Run.get_context()
rounds, calls = int(sys.argv[1]), int(sys.argv[2])
clock = time.perf_counter
ours, plain = [], []
os.makedirs("outputs", exist_ok=True)
with open("outputs/plain.jsonl", "w") as lines:
    for _ in range(rounds):
        begun = clock()
        for _ in range(calls):
            run.log("loss", 0.5)
        ours.append((clock() - begun) / calls)
        begun = clock()
        for _ in range(calls):
            lines.write(json.dumps({"e": "metric", "n": "loss", "v": 0.5, "t": time.time()}) + "\n")
            lines.flush()
        plain.append((clock() - begun) / calls)
os.remove("outputs/plain.jsonl")
with open("outputs/times.json", "w") as answer:
    json.dump({"ours": ours, "plain": plain}, answer)
