"""Transfer learning: keep what a trained model knows, and teach it something else with few examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import calque
from calque import nn
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, nearest, shown, type_name
from calque.data import DataLoader, TensorDataset
from calque.nn.utils import parametrize
from calque.text.models import Conv1D

__all__ = [
    "LoadReport", "cached_features", "finetune", "freeze", "load_partial", "lora", "lora_state_dict", "merge_lora", "parameter_groups",
    "replace_head", "reuse_classifier", "unfreeze",
]  # fmt: skip


def _module(where: str, model: Any) -> Any:
    if not isinstance(model, nn.Module):
        raise DTypeError(f"[{where}] expected a Module as model, got {type_name(model)}; pass the model itself")
    return model


def _named(where: str, model: Any, name: str) -> Any:
    """A module of the model by its path."""
    known = dict(model.named_modules())
    if name not in known or name == "":
        near = nearest(name, known, 0.6)
        hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(list(known)[1:13])}"
        raise ArgumentError(f"[{where}] expected the name of a module of {type(model).__name__}, got {shown(name)}{hint}")
    return known[name]


# ------------------------------------------------------------------------------------------------------------------ freezing


def _stay(module: Any, mode: bool = True) -> Any:
    """`train` of a frozen module: it stays in evaluation mode."""
    module.training = False
    for child in module.children():
        child.train(False)
    return module


def freeze(model: Any, until: str | None = None) -> list[str]:
    """Keep everything that the model registers before the module `until` exactly as it is; the names of the parameters that do not learn any more.

    Frozen parameters get no gradient, so no update and no weight decay either. Frozen modules stay in evaluation mode whatever `model.train()` says:
    the running statistics of batch norms do not move, and dropout is off. until: the path of the first module that goes on learning, such as "layer4"
    or "classifier.3"; default: nothing does.

    Raises ArgumentError for a path that is not there.

    >>> from calque.train import freeze
    >>> model = calque.nn.Sequential(calque.nn.Linear(2, 3), calque.nn.BatchNorm1d(3), calque.nn.Linear(3, 1))
    >>> freeze(model, until="2")
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    _module("freeze", model)
    stop = None if until is None else _named("freeze", model, until)
    before: list[Any] = []
    for module in model.modules():
        if module is stop:
            break
        before.append(module)
    holds = [module for module in before if stop is None or all(m is not stop for m in module.modules())]
    kept = {id(p) for module in model.modules() if all(m is not module for m in holds) for p in module._parameters.values() if p is not None}
    for module in holds:
        module.train = partial(_stay, module)
        module.train()
    names = []
    for name, parameter in model.named_parameters():
        if id(parameter) not in kept:
            parameter.requires_grad_(False)
            parameter.grad = None  # an old one would still be applied
            names.append(name)
    return names


def unfreeze(model: Any) -> None:
    """Let every parameter learn again, and every module follow `train()` and `eval()`."""
    for module in _module("unfreeze", model).modules():
        module.__dict__.pop("train", None)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.train(model.training)


# ------------------------------------------------------------------------------------------------------------------ heads


def _head(model: Any) -> str:
    """The path of the layer that gives the classes: the last one that is linear or a 1x1 convolution."""
    found = ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and tuple(module.kernel_size) == (1, 1)):
            found = name
    if not found:
        raise ArgumentError(f"[replace_head] expected a model with a linear layer, got {type(model).__name__} without one; pass name=")
    return found


def replace_head(model: Any, classes: int | Sequence[str], source_classes: Sequence[str] | None = None, name: str | None = None) -> Any:
    """Put a new, untrained last layer for other classes into the model; the new layer.

    classes: how many, or their names. source_classes: the names of the classes that the old layer knows; rows of classes that are in both are taken
    over (see `reuse_classifier`). name: the path of the layer; default: the last layer that is linear or a 1x1 convolution.

    >>> model = calque.nn.Sequential(calque.nn.Linear(4, 8), calque.nn.ReLU(), calque.nn.Linear(8, 10))
    >>> calque.train.replace_head(model, 3)
    Linear(in_features=8, out_features=3, bias=True)
    """
    _module("replace_head", model)
    count = classes if isinstance(classes, int) and not isinstance(classes, bool) else len(classes)  # type: ignore[arg-type]
    if count < 1:
        raise ArgumentError(f"[replace_head] expected at least one class, got {shown(classes)}")
    path = _head(model) if name is None else name
    old = _named("replace_head", model, path)
    options = {"bias": old.bias is not None, "device": old.weight.device, "dtype": old.weight.dtype} if hasattr(old, "weight") else {}
    if isinstance(old, nn.Linear):
        new: Any = nn.Linear(old.in_features, count, **options)
    elif isinstance(old, nn.Conv2d):
        new = nn.Conv2d(old.in_channels, count, old.kernel_size, stride=old.stride, padding=old.padding, **options)
    else:
        raise DTypeError(f"[replace_head] expected a Linear or Conv2d at {path!r}, got {type_name(old)}; pass name=")
    if source_classes is not None:
        if isinstance(classes, int):
            raise ArgumentError(f"[replace_head] expected the names of the new classes beside source_classes, got classes={classes}")
        reuse_classifier(old, new, source_classes, classes)
    parent, _, last = path.rpartition(".")
    setattr(model if not parent else _named("replace_head", model, parent), last, new)
    new.train(model.training)
    return new


def reuse_classifier(old: nn.Module, new: nn.Module, source_classes: Sequence[str], target_classes: Sequence[str]) -> list[str]:
    """Copy the rows of the classes that both layers know from `old` to `new`; the names of these classes.

    Names are compared without case and surrounding blanks; "_" and " " are one. Raises ShapeError if a layer has another number of rows than there
    are names.
    """
    for layer, names, what in ((old, source_classes, "source_classes"), (new, target_classes, "target_classes")):
        if len(layer.weight) != len(names):
            raise ShapeError(f"[reuse_classifier] expected {len(layer.weight)} names as {what}, one for each row of the layer, got {len(names)}")
    if old.weight.shape[1:] != new.weight.shape[1:]:
        raise ShapeError(f"[reuse_classifier] expected layers with equal inputs, got {tuple(old.weight.shape)} and {tuple(new.weight.shape)}")
    places = {_plain(name): row for row, name in enumerate(source_classes)}
    pairs = [(places[_plain(name)], row, name) for row, name in enumerate(target_classes) if _plain(name) in places]
    with calque.no_grad():
        for source, target, _ in pairs:
            new.weight[target] = old.weight[source]
            if old.bias is not None and new.bias is not None:
                new.bias[target] = old.bias[source]
    return [name for _, _, name in pairs]


def _plain(name: str) -> str:
    return str(name).strip().lower().replace("_", " ")


# ------------------------------------------------------------------------------------------------------------------ partial loading


@dataclass
class LoadReport:
    """What `load_partial` did with each tensor, by name. `skipped`: with the reason. `missing`: what the model has and the file has not."""

    copied: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.copied)} copied, {len(self.resized)} resized, {len(self.skipped)} skipped, {len(self.missing)} stay as they were"]
        lines += [f"  resized {name}: {why}" for name, why in self.resized.items()]
        lines += [f"  skipped {name}: {why}" for name, why in self.skipped.items()]
        lines += [f"  stays   {name}" for name in self.missing]
        return "\n".join(lines)


def load_partial(model: Any, state_dict: dict[str, Any], resize: bool = False) -> LoadReport:
    """Copy what fits from a state dict into the model, and report what happened to each tensor.

    A prefix that all names have and the model has not ("module.", "backbone.") is left out. resize: where only extents differ, copy the part that
    both have (rows of an embedding whose vocabulary has grown); default: such a tensor is skipped. Raises ArgumentError, and changes nothing, if
    nothing fits at all.

    >>> model = calque.nn.Linear(2, 3)
    >>> print(calque.train.load_partial(model, {"module.weight": calque.ones(3, 2), "module.scale": calque.ones(1)}))
    1 copied, 0 resized, 1 skipped, 1 stay as they were
      skipped module.scale: the model has no such tensor
      stays   bias
    """
    own: dict[str, Any] = _module("load_partial", model).state_dict()
    if not isinstance(state_dict, dict) or not all(isinstance(name, str) for name in state_dict):
        raise DTypeError(f"[load_partial] expected a dict of tensors, got {shown(state_dict)}; pass what state_dict() or calque.load gives")
    prefix = _prefix(state_dict, own)
    report = LoadReport()
    copies: list[tuple[Any, Any, Any]] = []
    for name, value in state_dict.items():
        target = own.get(name.removeprefix(prefix))
        if target is None:
            report.skipped[name] = "the model has no such tensor"
        elif not isinstance(value, calque.Tensor):
            report.skipped[name] = f"it is no tensor but {type_name(value)}"
        elif value.shape == target.shape:
            copies.append((target, value, ...))
            report.copied.append(name.removeprefix(prefix))
        elif resize and value.dim() == target.dim():
            part = tuple(slice(0, min(a, b)) for a, b in zip(value.shape, target.shape))
            copies.append((target, value, part))
            report.resized[name.removeprefix(prefix)] = f"{tuple(value.shape)} -> {tuple(target.shape)}"
        else:
            report.skipped[name] = f"shape {tuple(value.shape)}, but the model has {tuple(target.shape)}"
    if not copies:
        raise ArgumentError(f"[load_partial] expected names of {type(model).__name__}, such as {next(iter(own), '')!r}, got {list(state_dict)[:3]}; "
        f"nothing fits")
    with calque.no_grad():
        for target, value, part in copies:
            target[part] = value[part].to(target.dtype)
    done = {*report.copied, *report.resized}
    report.missing = [name for name in own if name not in done]
    return report


def _prefix(names: Iterable[str], own: dict[str, Any]) -> str:
    """What stands before every name and makes it known when it is left out."""
    first = next(iter(names), "")
    parts = first.split(".")
    for count in range(len(parts)):
        prefix = "".join(part + "." for part in parts[:count])
        if all(name.startswith(prefix) for name in names) and any(name.removeprefix(prefix) in own for name in names):
            return prefix
    return ""


# ------------------------------------------------------------------------------------------------------------------ low-rank adapters


class _LowRank(nn.Module):
    """weight -> weight + scale * up @ down. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021)."""

    def __init__(self, weight: Any, rank: int, alpha: float) -> None:
        super().__init__()
        self.down = nn.Parameter(calque.empty(rank, weight.shape[1], dtype=weight.dtype, device=weight.device))
        self.up = nn.Parameter(calque.zeros(weight.shape[0], rank, dtype=weight.dtype, device=weight.device))  # nothing changes at first
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, weight: Any) -> Any:
        return weight + self.scale * (self.up @ self.down)


def lora(model: Any, rank: int = 8, alpha: float = 16.0, targets: Callable[[str], bool] | Sequence[str] | None = None) -> list[str]:
    """Freeze the model and add a trainable product of two thin matrices to linear layers: few numbers learn. The paths of these layers.

    rank: of the product. alpha: it is multiplied by alpha / rank. targets: ends of the paths of layers, such as ["q_proj", "v_proj"], or a function
    of the path; default: every linear layer (those of GPT-2, `Conv1D`, too) but those whose weight another module has as well: the last layer of many
    language models has that of the first one, which must not move with it. Such a layer as a target raises ArgumentError. `lora_state_dict` are the
    numbers that learn, `merge_lora` adds them to the weights for good.

    >>> model = calque.nn.Sequential(calque.nn.Linear(8, 8), calque.nn.ReLU(), calque.nn.Linear(8, 2))
    >>> calque.train.lora(model, rank=2, targets=["0"])
    ['0']
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    32
    """
    _module("lora", model)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"[lora] expected rank to be an integer >= 1, got {shown(rank)}")
    wanted = targets if callable(targets) else (lambda path: targets is None or any(path == t or path.endswith("." + t) for t in targets))
    linear = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D)]
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    tied = [path for path, layer in linear if owners[id(layer.weight)] > 1]
    if targets is not None and (wrong := [path for path in tied if wanted(path)]):
        raise ArgumentError(f"[lora] expected layers with weights of their own, got {wrong}, whose weight another module has too; leave them out")
    layers = [(path, layer) for path, layer in linear if path not in tied and wanted(path)]
    if not layers:
        known = [path for path, _ in linear if path not in tied]
        raise ArgumentError(f"[lora] expected targets that name linear layers, got {shown(targets)}; there are {known[:12]}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    for _, layer in layers:
        parametrize.register_parametrization(layer, "weight", _LowRank(layer.weight, rank, alpha))
    return [path for path, _ in layers]


def lora_state_dict(model: Any) -> dict[str, Any]:
    """What `lora` has added and trained: load it into a model that had `lora(...)` with the same arguments by `load_state_dict(...,
    strict=False)`."""
    names = {f"{path}.{name}" for path, module in model.named_modules() if isinstance(module, _LowRank) for name in ("down", "up")}
    return {name: value for name, value in model.state_dict().items() if name in names}


def merge_lora(model: Any) -> None:
    """Add the products to the weights: the model computes the same and is what it was before `lora`."""
    for layer in list(model.modules()):
        if parametrize.is_parametrized(layer, "weight") and any(isinstance(m, _LowRank) for m in layer.parametrizations["weight"]):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


# ------------------------------------------------------------------------------------------------------------------ the recipe


def parameter_groups(model: Any, lr: float, layer_decay: float = 1.0, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Groups for an optimizer: each child of the model learns `layer_decay` times as fast as the one behind it, and biases and norms have no weight
    decay. Frozen parameters are left out. Children without parameters do not count.

    >>> model = calque.nn.Sequential(calque.nn.Linear(2, 2, bias=False), calque.nn.ReLU(), calque.nn.Linear(2, 1))
    >>> [(g["lr"], g["weight_decay"]) for g in calque.train.parameter_groups(model, 0.1, layer_decay=0.5, weight_decay=0.01)]
    [(0.05, 0.01), (0.1, 0.01), (0.1, 0.0)]
    """
    _module("parameter_groups", model)
    blocks = _blocks(model)
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for depth, block in enumerate(blocks):
        rate = lr * layer_decay ** (len(blocks) - 1 - depth)
        fresh = [p for p in block if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in fresh)
        for decayed in (True, False):
            chosen = [p for p in fresh if (p.dim() > 1) == decayed]
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": weight_decay if decayed else 0.0})
    if not groups:
        raise ArgumentError(f"[parameter_groups] expected parameters that learn, got {type(model).__name__} with none; unfreeze some")
    return groups


def _blocks(model: Any) -> list[list[Any]]:
    """Parameters of the model's layers from the input to the output: its children, and of a Sequential among them the children of that."""
    blocks: list[list[Any]] = [list(model._parameters.values())] if any(p is not None for p in model._parameters.values()) else []
    for child in model.children():
        parts = list(child.children()) if isinstance(child, nn.Sequential) else [child]
        blocks += [found for part in parts if (found := list(part.parameters()))]
    return [[p for p in block if p is not None] for block in blocks]


def _pairs(op: str, loader: Any) -> Iterator[Any]:
    """The batches of a loader, which must be pairs."""
    if not isinstance(loader, Iterable) or getattr(loader, "ndim", 1) == 0:
        raise ArgumentError(f"[{op}] expected a loader, whose batches are (inputs, labels), got {described(loader)}")
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ArgumentError(f"[{op}] expected batches (inputs, labels), got {described(batch)}; give a dataset of pairs")
        yield batch


def cached_features(features: Callable[[Any], Any], loader: Iterable[Any]) -> Any:
    """What a frozen part of a model gives for every batch (inputs, labels) of a loader, computed once: a TensorDataset of (features, labels) to train
    a head on."""
    found, labels = [], []
    modules = list(features.modules()) if isinstance(features, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        if isinstance(features, nn.Module):
            features.eval()
        with calque.no_grad():
            for inputs, targets in _pairs("cached_features", loader):
                found.append(features(inputs))
                labels.append(targets)
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode
    if not found:
        raise ArgumentError("[cached_features] expected at least one batch, got an empty loader; make a new one")
    return TensorDataset(calque.cat(found), calque.cat(labels))


def finetune(
    model: Any, data: Any, validation: Any = None, *, epochs: int = 10, lr: float = 2e-3, layer_decay: float = 0.9, weight_decay: float = 0.05,
    label_smoothing: float = 0.1, batch_size: int = 32, loss_fn: Callable[[Any, Any], Any] | None = None, max_norm: float = 1.0,
) -> list[dict[str, float]]:  # fmt: skip
    """Train a model that knows something on a few examples of something else, so that it does not forget: small rates that are smaller still near the
    input, a short warm-up and a cosine, few epochs, weight decay, label smoothing and clipped gradients. One dict for each epoch: loss, and with
    validation accuracy.

    data, validation: datasets of (input, label), or loaders. lr: of the last layer; each block before it learns `layer_decay` times as fast. loss_fn:
    default cross entropy with `label_smoothing`.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ArgumentError(f"[finetune] expected epochs to be an integer >= 1, got {shown(epochs)}")
    if isinstance(data, Mapping):
        raise ArgumentError(f"[finetune] expected a dataset or loader of (input, label), got {described(data)}; make a TensorDataset of it")
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=batch_size, shuffle=True)
    optimizer = calque.optim.AdamW(parameter_groups(model, lr, layer_decay, weight_decay))
    steps = epochs * len(loader)
    warm = max(1, steps // 10)
    scheduler = calque.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(k - warm, 0) / max(steps - warm, 1))))
    )
    criterion = loss_fn or partial(nn.functional.cross_entropy, label_smoothing=label_smoothing)
    learning = [p for group in optimizer.param_groups for p in group["params"]]
    history = []
    for _ in range(epochs):
        model.train()
        losses = []
        for inputs, labels in _pairs("finetune", loader):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(learning, max_norm)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
        entry = {"loss": calque.stack(losses).mean().item()}
        if validation is not None:
            entry["accuracy"] = _accuracy(model, validation, batch_size)
        history.append(entry)
    return history


def _accuracy(model: Any, data: Any, batch_size: int) -> float:
    """The share of samples whose largest output is their label."""
    model.eval()
    right = count = 0
    with calque.no_grad():
        for inputs, labels in data if isinstance(data, DataLoader) else DataLoader(data, batch_size=batch_size):
            right += (model(inputs).argmax(1) == labels).sum().item()
            count += len(labels)
    model.train()
    return right / max(count, 1)
