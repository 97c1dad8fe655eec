"""The inputs and outputs of a run by name: `run.input_datasets['training']`."""

import collections.abc
import os

from runyard_runtime import wire
from runyard_runtime.datasets import Dataset
from runyard_runtime.exceptions import UserErrorException, explain


class NoSuchDataset(UserErrorException, KeyError):
    """The run has no input or output of that name."""


class Named(collections.abc.Mapping):
    """Things by name, each made when it is asked for."""

    def __init__(self, word, makers):
        self._word = word
        self._makers = makers

    def __getitem__(self, name):
        if name not in self._makers:
            raise NoSuchDataset(
                explain(
                    "The run has no %s named '%s'." % (self._word, name),
                    "It has: %s." % (", ".join(sorted(self._makers)) or "none"),
                    "Pass dataset.as_named_input('%s') among the arguments." % name
                    if self._word == "input"
                    else "Pass OutputFileDatasetConfig('%s') among the arguments." % name,
                )
            )
        return self._makers[name]()

    def __setitem__(self, name, thing):
        """A name for a dataset that the script got by itself; the run's record has it not."""
        self._makers[name] = lambda: thing

    def __contains__(self, name):
        return name in self._makers

    def __iter__(self):
        return iter(self._makers)

    def __len__(self):
        return len(self._makers)

    def __repr__(self):
        return "%ss: %s" % (self._word, ", ".join(self._makers) or "none")


def inputs(run):
    """A run's inputs: for this process's own a path, or the dataset in direct mode."""
    if run.id != run._job.run_id:
        return Named("input", _recorded(run))
    makers = {}
    for pair in (os.environ.get(wire.DATASET_VARIABLES) or "").split(","):
        name, _, mode = pair.partition(":")
        if name:
            direct = mode.lower() == "direct"
            makers[name] = _dataset(run, os.environ.get(name)) if direct else _path(name)
    return Named("input", makers)


def outputs(run):
    """The folders that this process's run writes."""
    names = []
    if run.id == run._job.run_id:
        names = (os.environ.get(wire.FILE_OUTPUTS) or "").split(";")
    return Named("output", {name: _path(name) for name in names if name})


def _recorded(run):
    script = run._known()["spec"].get("script") or {}
    return {
        one["name"]: _dataset(run, one["dataset"])
        for one in script.get("inputs") or ()
        if one.get("dataset")
    }


def _path(name):
    return lambda: os.environ.get(name, "")


def _dataset(run, dataset_id):
    return lambda: Dataset.get_by_id(run.experiment.workspace, dataset_id)
