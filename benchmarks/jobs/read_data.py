"""In a job: two epochs of FOLDER, then PLAIN, a local copy, and FOLDER in turn, timed."""

import json
import os
import sys
import time


def epoch(folder):
    """Seconds for the small files and for the large one."""
    began = time.perf_counter()
    for name in sorted(os.listdir(os.path.join(folder, "small"))):
        with open(os.path.join(folder, "small", name), "rb") as stream:
            stream.read()
    middle = time.perf_counter()
    with open(os.path.join(folder, "big.bin"), "rb") as stream:
        for _ in iter(lambda: stream.read(1 << 20), b""):
            pass
    return {"small": middle - began, "big": time.perf_counter() - middle, "at": time.time()}


folder, plain, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = {"ours": [epoch(folder), epoch(folder)], "plain": []}
for _ in range(epochs):
    found["plain"].append(epoch(plain))
    found["ours"].append(epoch(folder))
print("EPOCHS " + json.dumps(found), flush=True)
