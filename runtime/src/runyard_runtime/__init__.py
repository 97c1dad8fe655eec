"""The part of Runyard that travels into jobs: standard library only, Python 3.6 and newer."""

__version__ = "0.1.0"
