"""`predict_once.py KIND FOLDER`: import, load, predict one row. The floor for being ready."""

import sys
from pathlib import Path

from predicting import load

if __name__ == "__main__":
    print(load(sys.argv[1], Path(sys.argv[2]))([[0.01] * 10]))
