"""The conversation of a driver: one JSON request a line in, one JSON answer a line out."""

import json
import os
import sys
import traceback


def serve(**actions):
    """Answer requests until the input ends: {"do": NAME, argument: value, …}."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not mix with the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": actions[request.pop("do")](**request)}
        except Exception:  # noqa: BLE001 - whatever it is, the other side must hear of it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
