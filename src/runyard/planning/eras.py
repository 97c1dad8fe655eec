"""Old pins get the company of their time, and names that went away get their successors. Pure.

An old release rarely says which later releases of its dependencies it cannot live with: they did
not exist yet. The tables say it in its place. They narrow what the resolver may choose and never
overrule a version that the user wrote.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runyard.planning.requirements import (
    Version,
    requirement_name,
    stays_below,
    version_part,
)


class Era(NamedTuple):
    """What a package needs as long as it is kept below a version."""

    packages: tuple[str, ...]
    below: Version
    constraints: tuple[str, ...]
    why: str


_TF = ("tensorflow", "tensorflow-gpu", "tensorflow-cpu")

# One line each, for each package the lowest limit first: TensorFlow 1.13 is below all of them, and
# of what several rows say about numpy the first counts.
ERAS: tuple[Era, ...] = (
    Era(_TF, (1, 15), ("gast<0.3",), "AutoGraph needs gast's old nodes"),
    Era(_TF, (2, 5), ("numpy<1.20", "h5py<3"), "numpy 1.20 and h5py 3 came later and break Keras"),
    Era(_TF, (2, 9), ("protobuf<3.21",), "its generated code is refused by protobuf 4"),
    Era(_TF, (2, 14), ("numpy<1.24", "wrapt<2"), "scripts of its time say np.float, np.bool"),
    Era(_TF, (2, 18), ("numpy<2", "setuptools<81"), "it was built for numpy 1"),
    Era(("tensorboard",), (2, 9), ("protobuf<3.21", "werkzeug<2.1"), "it needs their old names"),
    Era(("tensorboard",), (2, 20), ("setuptools<81",), "it imports pkg_resources"),
    Era(("keras",), (2, 4), ("h5py<3",), "models cannot be loaded with h5py 3"),
    Era(("torch",), (1, 11), ("setuptools<59.6",), "its TensorBoard writer uses distutils"),
    Era(("torch",), (2, 3), ("numpy<2",), "it was built for numpy 1"),
    Era(("torchvision",), (0, 5), ("pillow<7",), "it imports PIL.PILLOW_VERSION"),
    Era(("torchvision",), (0, 13), ("pillow<10",), "it uses constants that Pillow 10 removed"),
    Era(
        ("chainer",),
        (8,),
        ("numpy<1.20", "setuptools<60", "protobuf<3.21"),
        "it uses np.bool, and distutils by way of numpy; its Caffe reader is generated code",
    ),
    Era(("scikit-learn",), (0, 23), ("numpy<1.20", "scipy<1.6"), "it uses np.float and old scipy"),
    Era(("scikit-learn",), (1, 0), ("numpy<1.24",), "it uses np.float"),
    Era(("pandas",), (1, 0), ("numpy<1.20",), "it was built for an older numpy"),
    Era(("pandas",), (2, 2), ("numpy<2",), "it was built for numpy 1"),
    Era(("matplotlib",), (3, 9), ("numpy<2",), "it was built for numpy 1"),
    Era(("onnx",), (1, 12), ("protobuf<3.21",), "its generated code is refused by protobuf 4"),
    Era(
        ("flask",),
        (2,),
        ("jinja2<3.1", "markupsafe<2.1", "itsdangerous<2.1", "werkzeug<2.1"),
        "it imports names that these removed",
    ),
    Era(("jinja2",), (3,), ("markupsafe<2.1",), "it imports soft_unicode"),
)


class Retired(NamedTuple):
    """A name of the package index that leads nowhere now."""

    successor: str
    below: Version = ()  # below this version the name still works …
    since: Version = ()  # … but only from this version on
    stub: str = ""  # the version that only stood for "the newest"; it is left away
    why: str = ""
    too_old: str = ""  # why it does not work below `since`


RETIRED: dict[str, Retired] = {
    "tensorflow-gpu": Retired(
        "tensorflow",
        below=(2, 12),
        since=(2, 1),
        why="it ended with 2.11",
        too_old="it cannot even be imported without CUDA 10 on the machine",
    ),
    "tf-nightly-gpu": Retired("tf-nightly", why="it is no longer made"),
    "sklearn": Retired("scikit-learn", stub="0.0", why="it is not the package itself"),
    "skimage": Retired("scikit-image", stub="0.0", why="it is not the package itself"),
    "pytorch": Retired("torch", why="it is not the package itself"),
    "pil": Retired("pillow", why="it is no longer made"),
}


def replace_retired(line: str, notes: list[str]) -> str:
    """The normalised line under the name that the package has now; a note if that is another."""
    name = requirement_name(line)
    row = RETIRED.get(name)
    if row is None:
        return line
    too_old = bool(row.since) and stays_below(line, row.since)
    if row.below and stays_below(line, row.below) and not too_old:
        return line
    rest = line[len(name) :]
    if row.stub and version_part(line).removeprefix("==").startswith(row.stub):
        rest = rest.replace(version_part(line), "", 1)
    successor = f"{row.successor}{rest}"
    notes.append(f"{line}: {row.too_old if too_old else row.why}, installed as {successor}")
    return successor


def plan_constraints(requirements: Sequence[str], notes: list[str]) -> tuple[str, ...]:
    """What the old pins among normalised requirements ask of packages without a version."""
    chosen = {requirement_name(line) for line in requirements if version_part(line)}
    constraints: list[str] = []
    for line in requirements:
        name, wanted = requirement_name(line), dict[str, str]()
        for row in ERAS:
            if name in row.packages and stays_below(line, row.below):
                for one in row.constraints:
                    wanted.setdefault(requirement_name(one), one)  # the first row is the tightest
        added = [one for package, one in wanted.items() if package not in chosen]
        if added:
            notes.append(f"{line}: with versions of its time, {', '.join(added)}")
            constraints += added
    return tuple(sorted(dict.fromkeys(constraints)))
