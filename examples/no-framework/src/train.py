"""Fit a straight line by gradient descent: a training script without any framework."""

import argparse
import json
import os
import random

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()

run = Run.get_context()
chance = random.Random(7)
points = [(x / 100, 3 * x / 100 - 1 + chance.gauss(0, 0.05)) for x in range(-100, 100)]

slope = intercept = 0.0
for epoch in range(args.epochs):
    errors = [(slope * x + intercept - y, x) for x, y in points]
    slope -= args.lr * 2 * sum(error * x for error, x in errors) / len(points)
    intercept -= args.lr * 2 * sum(error for error, _ in errors) / len(points)
    loss = sum(error * error for error, _ in errors) / len(points)
    run.log("loss", loss)
    print(f"epoch {epoch + 1}: loss {loss:.4f}")

run.log("slope", slope)
run.log("intercept", intercept)
os.makedirs("outputs/model", exist_ok=True)
with open("outputs/model/line.json", "w") as model:
    json.dump({"slope": slope, "intercept": intercept}, model)
print(f"y = {slope:.2f} x + {intercept:.2f}")
