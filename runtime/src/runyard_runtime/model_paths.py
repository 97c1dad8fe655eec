"""Where the files of models are on this machine: v1's azureml-models/NAME/VERSION/…"""

import os

from runyard_runtime.exceptions import ModelNotFoundException, WebserviceException, explain

FOLDER = "azureml-models"
VARIABLE = "AZUREML_MODEL_DIR"  # in a service: of its one model, or of all


def root(environ=None):
    """The folder with all models: the service's, or the one in the working directory."""
    place = (os.environ if environ is None else environ).get(VARIABLE)
    while place and os.path.basename(os.path.normpath(place)) != FOLDER:
        above = os.path.dirname(os.path.normpath(place))
        place = above if above != place else None
    return place or FOLDER


def find(name, version=None, environ=None):
    """The path of the file or folder that the model is; `ModelNotFoundException` if it is not here.

    Without a version the newest that is here is meant. Then ./NAME is looked at, as v1 does.
    """
    folder = os.path.join(root(environ), name)
    here = sorted((int(one) for one in _names(folder) if one.isdigit()), reverse=True)
    wanted = here[0] if here and version is None else version
    if wanted in here:
        place = os.path.join(folder, str(wanted))
        # Half a file that is on its way here begins with a dot, or ends in .partial.
        found = [one for one in _names(place) if one[0] != "." and not one.endswith(".partial")]
        if len(found) != 1:
            raise WebserviceException(
                explain(
                    "The folder '%s' should hold one file or folder, the model." % place,
                    "It holds: %s." % (", ".join(sorted(found)) or "nothing"),
                    "Remove it, so that the model is fetched anew.",
                )
            )
        return os.path.join(place, found[0])
    if os.path.exists(name):
        return name
    raise ModelNotFoundException(
        explain(
            "Model '%s'%s is not here." % (name, "" if version is None else ":%s" % version),
            "There is neither '%s' nor '%s' in %s.%s"
            % (
                os.path.join(folder, str(version or "VERSION")),
                name,
                os.getcwd(),
                _others(here, root(environ)),
            ),
            _fix(environ),
        )
    )


def _others(versions, folder):
    """What is there instead, in words."""
    if versions:
        return " There are versions %s." % ", ".join(str(one) for one in versions)
    models = sorted(_names(folder))
    return " Models here: %s." % ", ".join(models[:20]) if models else ""


def _fix(environ):
    if (os.environ if environ is None else environ).get(VARIABLE):
        return "Deploy the service with this model, too (models=[...]), or mind the spelling."
    return "Say from which workspace it is to be fetched, or mind the spelling."


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
