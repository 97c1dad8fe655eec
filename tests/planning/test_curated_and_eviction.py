"""The table of curated environments, and the choice of built ones that may go."""

from datetime import UTC, datetime, timedelta

import pytest

from runyard.domain.environments import RESERVED_PREFIXES, EnvironmentOnDisk
from runyard.planning.curated import CURATED, all_curated, find_curated
from runyard.planning.environments import plan_venv
from runyard.planning.eviction import JUST_USED, plan_eviction

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def test_every_line_is_a_plan_under_a_name_of_its_own() -> None:
    names = [spec.name for spec in all_curated()]
    assert len(set(names)) == len(names)
    for spec in all_curated():
        assert spec.name.startswith(RESERVED_PREFIXES)
        plan_venv(spec)


@pytest.mark.parametrize("framework", ["TensorFlow-1.13", "TensorFlow-2.0", "TensorFlow-2.1"])
@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_v1s_names_are_there(framework: str, kind: str) -> None:
    assert find_curated(f"AzureML-{framework}-{kind}") is not None


def test_the_pages_own_two_hold_what_they_held() -> None:
    tensorflow = find_curated("AzureML-TensorFlow-2.2-GPU")
    assert tensorflow is not None
    assert tensorflow.python == "3.6.2"
    assert {"tensorflow-gpu==2.2.0", "horovod==0.19.1"} <= set(tensorflow.pip)
    assert "azureml-defaults==1.13.0" in tensorflow.pip
    torch = find_curated("AzureML-PyTorch-1.6-GPU")
    assert torch is not None
    assert {"torch==1.6.0", "tensorboard==1.14.0", "future==0.17.1"} <= set(torch.pip)
    assert find_curated("AzureML-Nothing") is None
    assert len(CURATED) >= 24


def built(key: str, days: float, gb: float = 1) -> EnvironmentOnDisk:
    return EnvironmentOnDisk(
        key=key,
        name=key,
        python="3.11.7",
        lock=(),
        requirements=(),
        size_bytes=int(gb * 1e9),
        seconds=1,
        last_used=NOW - timedelta(days=days),
    )


SHELF = [built("new", 1), built("month", 31), built("year", 365), built("big", 40, 10)]


@pytest.mark.parametrize(
    ("in_use", "keep_days", "max_gb", "going"),
    [
        ((), 30, None, ["year", "big", "month"]),
        ((), 100, None, ["year"]),
        ((), 0, None, ["year", "big", "month", "new"]),
        ((), None, 13, []),
        ((), None, 12, ["year"]),
        ((), None, 5, ["year", "big"]),
        ((), None, 0, ["year", "big", "month", "new"]),
        ((), 100, 12, ["year"]),
        (("year", "big"), 30, 0, ["month", "new"]),
        ((), None, None, []),
    ],
)
def test_the_longest_unused_go_first_and_never_one_in_use(
    in_use: tuple[str, ...], keep_days: float | None, max_gb: float | None, going: list[str]
) -> None:
    max_bytes = None if max_gb is None else max_gb * 1e9
    gone = plan_eviction(SHELF, in_use, NOW, keep_days=keep_days, max_bytes=max_bytes)
    assert [one.key for one in gone] == going


def test_one_that_was_just_handed_out_stays() -> None:
    fresh = built("fresh", (JUST_USED / 2) / timedelta(days=1))
    assert plan_eviction([fresh], (), NOW, keep_days=0, max_bytes=0) == []


@pytest.mark.parametrize(
    ("name", "python", "package"),
    [
        ("AzureML-sklearn-0.24-ubuntu18.04-py37-cpu", "3.7", "scikit-learn==0.24.1"),
        ("AzureML-pytorch-1.10-ubuntu18.04-py38-cuda11-gpu", "3.8", "torch==1.10.1"),
        ("AzureML-ACPT-pytorch-1.13-py38-cuda11.7-gpu", "3.8", "torchvision==0.14.1"),
        ("AzureML-tensorflow-2.4-ubuntu18.04-py37-cuda11-gpu", "3.7", "tensorflow==2.4.4"),
        ("AzureML-minimal-ubuntu18.04-py37-cpu-inference", "3.7", "azureml-defaults"),
        ("AzureML-PyTorch-1.2-CPU", "3.6.2", "torch==1.2.0"),
    ],
)
def test_names_of_2021_hold_what_they_say(name: str, python: str, package: str) -> None:
    spec = find_curated(name)
    assert spec is not None
    assert spec.python == python
    assert package in spec.pip
