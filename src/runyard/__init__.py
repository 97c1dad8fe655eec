"""Runyard: train, track, register and deploy models on your own machines."""

__version__ = "0.1.0"
