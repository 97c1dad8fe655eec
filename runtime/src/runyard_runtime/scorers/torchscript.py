"""Scores with a TorchScript file, by PyTorch."""

from runyard_runtime.scorers.base import (
    CannotServe,
    Loaded,
    Signature,
    Tensor,
    cores,
    model_file,
    needed,
)
from runyard_runtime.scoring_batches import TensorService

_SAVE = (
    "Save it as TorchScript, torch.jit.trace(model.eval(), example).save(path) or "
    "torch.jit.script(model.eval()).save(path), or give an entry script that builds the network."
)


def load(spec):
    """The service of a TorchScript file, which does not say which shapes it takes."""
    torch = needed("torch", "torchscript")
    numpy = needed("numpy", "torchscript")
    path = model_file(spec, (".pt", ".pth", ".torchscript", ".jit"), "A TorchScript model")
    torch.set_num_threads(cores())
    model = _loaded(torch, path)
    arguments = [one for one in model.forward.schema.arguments if one.name != "self"]
    required = [one for one in arguments if not one.has_default_value()]
    if not required or any(str(one.type) != "Tensor" for one in required):
        listed = ", ".join("%s: %s" % (one.name, one.type) for one in arguments)
        raise CannotServe(
            "forward(%s) of the model takes other things than tensors. Give an entry script."
            % listed
        )
    inputs = [Tensor(one.name, "FP32", [-1]) for one in required]
    call, results = _call(torch, model, numpy)
    signature = Signature(
        "forward",
        inputs,
        results,
        call,
        unshaped=True,
        batches=True,
        bad_input=(ValueError, TypeError, RuntimeError),
    )
    loaded = Loaded("torchscript", "pytorch_torchscript", {"forward": signature}, "forward", False)
    return TensorService(loaded, spec)


def _loaded(torch, path):
    try:
        model = torch.jit.load(path, map_location="cuda" if torch.cuda.is_available() else "cpu")
    except Exception as problem:
        text = " ".join(str(problem).split())[:300]
        raise CannotServe("%s is not TorchScript (PyTorch says: %s). %s" % (path, text, _SAVE))
    return model.eval()


def _call(torch, model, numpy):
    """The function that scores, and the outputs, whose names are known after the first call."""
    own = next(iter(model.parameters()), None)
    real = own.dtype if own is not None and own.is_floating_point() else torch.float32
    device = own.device if own is not None else torch.device("cpu")
    without_gradients = getattr(torch, "inference_mode", torch.no_grad)
    results = [Tensor("output_0", "FP32", [-1])]
    whole = {"numbers": False}  # whether the model turned out to take whole numbers

    def tensor(array, keep):
        made = torch.from_numpy(numpy.array(array))  # a copy: arrays of a request are read-only
        if made.is_floating_point() or not keep:
            made = made.to(real)
        return made.to(device)

    def forward(arrays, keep):
        with without_gradients():
            return model(*[tensor(array, keep) for array in arrays])

    def score(arrays):
        keep = whole["numbers"]
        try:
            found = forward(arrays, keep)
        except RuntimeError as problem:
            # JSON does not tell 3 from 3.0: what a layer of embeddings refuses as a real number
            # may be an index.
            text = str(problem)
            if keep or not ("Long" in text or "Int" in text):
                raise
            found = forward(arrays, True)
            whole["numbers"] = True
        parts = _parts(found)
        if len(parts) != len(results) or parts[0][0] != results[0].name:
            results[:] = [Tensor(name, "FP32", [-1]) for name, _ in parts]
        return [value.detach().cpu().numpy() for _, value in parts]

    return score, results


def _parts(found):
    """[(name, tensor), …] of what a model returned."""
    if isinstance(found, dict):
        return [(str(name), value) for name, value in found.items()]
    if isinstance(found, (tuple, list)):
        names = getattr(found, "_fields", None) or ["output_%d" % n for n in range(len(found))]
        return list(zip(names, found))
    return [("output_0", found)]
