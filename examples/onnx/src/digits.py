"""The data of both scripts, and what both check of the file they made."""

import json
import os

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load():
    """Images of handwritten digits, 64 numbers each, and what they are: to learn, and to test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    return train_test_split(images, labels, test_size=0.2, random_state=7, stratify=labels)


def check(path, images, expected):
    """Stop if the ONNX file does not answer what the model did, for any number of rows."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    for rows in (1, len(images)):
        (found,) = session.run(None, {given.name: images[:rows]})
        np.testing.assert_allclose(found, expected[:rows], rtol=1e-3, atol=1e-3)
    print(f"{path} takes {given.name} of shape {given.shape} and answers as the model does")


def keep_unseen(images, labels):
    """Keep one image of each digit for the service to be tried with."""
    which = [(labels == digit).nonzero()[0][-1] for digit in range(10)]
    with open(os.path.join("outputs", "unseen.json"), "w") as kept:
        json.dump({"images": images[which].tolist(), "labels": labels[which].tolist()}, kept)
