"""What happens in a random training loop: every public method of `Events` is one kind of event, the same for both libraries.

An event notes what a user could see (losses, outputs, gradients, flags). Choices come from `self.r` and data from `self.values`, never from
a computed value, so that both sides take the same way.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np

from tests.oracle.loop_models import Plan, sample

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.01, "maximize": True}),
    ("Adam", {"lr": 0.01, "eps": 1e-3}),
    ("Adam", {"lr": 0.01, "eps": 1e-3, "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "eps": 1e-3}),
    ("AdamW", {"lr": 0.01, "eps": 1e-3, "amsgrad": True, "betas": (0.8, 0.9)}),
    ("RMSprop", {"lr": 0.01, "eps": 1e-3}),
    ("RMSprop", {"lr": 0.005, "eps": 1e-2, "centered": True, "momentum": 0.5}),
    ("Adagrad", {"lr": 0.05, "eps": 1e-3, "lr_decay": 0.1}),
]
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 2, "gamma": 0.7}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 5}),
    ("MultiStepLR", {"milestones": [1, 4]}),
    ("LinearLR", {"total_iters": 4}),
    ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3}),
    ("ConstantLR", {"factor": 0.5}),
    ("OneCycleLR", {"max_lr": 0.05, "total_steps": 60, "cycle_momentum": False}),
    ("ReduceLROnPlateau", {"patience": 0}),
    ("LambdaLR", {"lr_lambda": lambda step: 1 / (1 + step)}),
    ("MultiplicativeLR", {"lr_lambda": lambda step: 0.95}),
]
REFUSED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)


class Loop:
    """One library's side of a training loop: the network, its optimizer, and all that was noted."""

    def __init__(self, T: Any, net: Any, plan: Plan, seed: int, dtype: str) -> None:
        self.T, self.net, self.plan, self.seed = T, net, plan, seed
        self.dtype = getattr(T, dtype)
        self.r, self.values = random.Random(seed), np.random.default_rng(seed)
        self.noted: list[tuple[str, Any]] = []
        self.event = ""
        self.saved: Any = None
        self.saved_steps: Any = None
        self.handles: list[Any] = []
        self.kept: list[Any] = []
        self.renew(), self.reschedule()

    def renew(self) -> None:
        name, options = self.r.choice(OPTIMIZERS)
        parameters = list(self.net.parameters())
        if self.r.random() < 0.3 and len(parameters) > 2:
            half = len(parameters) // 2
            parameters = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": 0.003}]
        self.optimizer = getattr(self.T.optim, name)(parameters, **options)

    def reschedule(self) -> None:
        self.schedule_name, options = self.r.choice(SCHEDULES)
        self.schedule = getattr(self.T.optim.lr_scheduler, self.schedule_name)(self.optimizer, **options)

    def run(self, events: list[str]) -> list[tuple[str, Any]]:
        for number, name in enumerate(events):
            self.event = f"{number} {name}"
            self.r, self.values = random.Random(self.seed * 1000 + number), np.random.default_rng(self.seed * 1000 + number)
            try:
                getattr(self, name)()
            except REFUSED as error:
                self.note("refused", error)
            self.T.set_grad_enabled(True)
        self.event = "at the end"
        self.state()
        return self.noted

    def note(self, what: str, value: Any) -> None:
        """Keep a value as it is now. A tensor is read at once or at the end, by chance."""
        late = isinstance(value, self.T.Tensor) and self.r.random() < 0.5
        if isinstance(value, self.T.Tensor):
            value = value.detach().clone()
        self.noted.append((f"{self.event}: {what}", value if late or isinstance(value, Exception) else self.plain(value)))

    def plain(self, value: Any) -> Any:
        if isinstance(value, self.T.Tensor):
            return value.numpy().copy()
        return [self.plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    def state(self) -> None:
        for name, value in self.net.state_dict().items():
            if "num_batches_tracked" not in name:  # PyTorch counts a batch before it refuses it
                self.note(name, value)
        for name, p in self.net.named_parameters():
            self.note(f"grad of {name}", p.grad)
        for key, entries in self.optimizer.state_dict()["state"].items():
            for name in sorted(entries):
                self.note(f"state {key} {name}", entries[name])
        self.note("rates", [float(g["lr"]) for g in self.optimizer.param_groups])

    # ------------------------------------------------------------------------------------------------------------ pieces

    def batch(self, rows: int = 4, dtype: Any = None) -> Any:
        return sample(self.T, self.plan, rows, self.values, dtype or self.dtype)

    def loss(self, out: Any, kind: int | None = None) -> Any:
        F, T, n, k = self.T.nn.functional, self.T, out.shape[0], self.plan.classes
        labels = T.tensor(self.values.integers(0, k, n))
        real = T.tensor(self.values.normal(size=tuple(out.shape)), dtype=out.dtype)
        share = T.tensor(self.values.random(tuple(out.shape)), dtype=out.dtype)
        kind = self.r.randrange(13) if kind is None else kind
        if kind == 0:
            return F.cross_entropy(out, labels)
        if kind == 1:
            return F.cross_entropy(out, labels, label_smoothing=0.1, weight=T.linspace(0.5, 1.5, k, dtype=out.dtype), reduction="sum") / n
        if kind == 2:
            return F.nll_loss(F.log_softmax(out, 1), labels, ignore_index=0, reduction="sum")
        if kind == 3:
            return F.binary_cross_entropy_with_logits(out, share, pos_weight=T.full((k,), 1.5, dtype=out.dtype))
        if kind == 4:
            return F.smooth_l1_loss(out, real, beta=0.5)
        if kind == 5:
            return F.huber_loss(out, real, reduction="none").mean(1).sum()
        if kind == 6:
            return F.kl_div(F.log_softmax(out, -1), share.softmax(-1), reduction="batchmean")
        if kind == 7:
            return F.multi_margin_loss(out, labels)
        if kind == 8:
            return F.cosine_embedding_loss(out, real, T.tensor([1, -1] * (n // 2) + [1] * (n % 2)), margin=0.1)
        if kind == 9:
            return F.l1_loss(out, real)
        if kind == 10:
            return F.cross_entropy(out, share.softmax(-1))
        if kind == 11:
            return F.soft_margin_loss(out, share.round() * 2 - 1)
        return F.mse_loss(out, real)

    def backward(self, rows: int = 4, kind: int | None = None) -> Any:
        loss = self.loss(self.net(self.batch(rows)), kind)
        loss.backward()
        return loss

    def parameter(self) -> Any:
        found = list(self.net.parameters())
        return found[self.r.randrange(len(found))]

    def module(self, *kinds: str) -> Any:
        """A module of the network, of one of these kinds if there is one."""
        found = list(self.net.modules())
        return self.r.choice([m for m in found if type(m).__name__ in kinds] or found)


class Steps(Loop):
    """Ways to make a step."""

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.note("loss", self.backward())
        self.optimizer.step()

    def several(self) -> None:
        for _ in range(4):
            self.train()

    def zeros(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.note("loss", self.backward())
        self.optimizer.step()

    def grow(self) -> None:
        self.note("loss", self.backward())
        self.optimizer.step()

    def accumulate(self) -> None:
        self.optimizer.zero_grad()
        for rows in (4, 3, 2):
            (self.loss(self.net(self.batch(rows)), 12) * (rows / 9)).backward()
        self.optimizer.step()

    def larger(self) -> None:
        self.backward(self.r.choice([5, 7, 16]))
        self.optimizer.step()

    def single(self) -> None:
        self.note("loss", self.backward(1))
        self.optimizer.step()

    def empty(self) -> None:
        self.note("out", self.net(self.batch(0)).sum())

    def closure(self) -> None:
        def again() -> Any:
            self.optimizer.zero_grad()
            return self.backward(kind=12)

        self.note("loss", self.optimizer.step(again))

    def by_hand(self) -> None:
        self.net.zero_grad()
        self.backward()
        with self.T.no_grad():
            for p in self.net.parameters():
                if p.grad is not None:
                    p -= 0.01 * p.grad

    def by_hand_data(self) -> None:
        self.backward()
        for p in self.net.parameters():
            if p.grad is not None:
                p.data.add_(p.grad.data, alpha=-0.01)
                p.grad.zero_()

    def without_gradients(self) -> None:
        self.net.zero_grad()
        self.optimizer.step()

    def decayed(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.batch())) + 0.01 * sum(p.pow(2).sum() for p in self.net.parameters())
        loss.backward()
        self.optimizer.step()
        self.note("loss", loss)

    def penalty(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.batch()), self.r.choice([0, 12]))
        wanted = [p for p in self.net.parameters() if p.requires_grad]
        slopes = self.T.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        norm = sum((g * g).sum() for g in slopes if g is not None)
        (loss + 0.01 * norm).backward()
        self.note("norm", norm)
        self.optimizer.step()

    def gradients(self) -> None:
        x = self.batch()
        loss = self.loss(self.net(x), 0)
        for g in self.T.autograd.grad(loss, [p for p in self.net.parameters() if p.requires_grad], allow_unused=True):
            self.note("gradient", g)

    def of_inputs(self) -> None:
        x = self.batch()
        if x.is_floating_point():
            x.requires_grad_()
            self.loss(self.net(x)).backward()
            self.note("gradient", x.grad)
            self.note("leaf", x.is_leaf)

    def adversarial(self) -> None:
        x = self.batch()
        if x.is_floating_point():
            x.requires_grad_()
            (g,) = self.T.autograd.grad(self.loss(self.net(x), 12), x)
            self.loss(self.net((x + 0.1 * g).detach()), 12).backward()
            self.optimizer.step()

    def retained(self) -> None:
        loss = self.loss(self.net(self.batch()))
        loss.backward(retain_graph=True)
        loss.backward()
        self.optimizer.step()

    def twice_refused(self) -> None:
        loss = self.loss(self.net(self.batch()))
        loss.backward()
        loss.backward()

    def two_graphs(self) -> None:
        a, b = self.net(self.batch()), self.net(self.batch(3))
        (self.loss(a) + 0.5 * self.loss(b)).backward()
        self.optimizer.step()

    def only_first(self) -> None:
        a, b = self.net(self.batch()), self.net(self.batch())
        self.loss(a).backward()
        self.note("second", b)

    def vector_backward(self) -> None:
        out = self.net(self.batch())
        out.backward(self.T.ones_like(out) * 0.1)
        self.optimizer.step()

    def vector_refused(self) -> None:
        self.net(self.batch()).backward()

    def huge(self) -> None:
        with self.T.no_grad():
            last = list(self.net.parameters())[-1]
            last.mul_(1e30)
            self.note("loss", self.loss(self.net(self.batch()), self.r.choice([0, 3, 12])))
            last.mul_(1e-30)

    def diverging(self) -> None:
        """A twin of the network that overflows."""
        twin = copy.deepcopy(self.net)
        steps = self.T.optim.SGD(twin.parameters(), lr=1e18 if self.dtype is self.T.float32 else 1e140)
        for _ in range(4):
            steps.zero_grad()
            loss = self.loss(twin(self.batch()), 12)
            loss.backward()
            steps.step()
            self.note("loss", loss)


class Reads(Steps):
    """Looking without changing, and gradient modes."""

    def item(self) -> None:
        self.note("loss", self.backward().item())
        self.optimizer.step()

    def evaluate(self) -> None:
        self.net.eval()
        with self.T.no_grad():
            self.note("out", self.net(self.batch(5)))
        self.net.train()

    def evaluate_with_gradients(self) -> None:
        self.net.eval()
        self.backward()
        self.net.train()
        self.optimizer.step()

    def stay_in_eval(self) -> None:
        self.net.train(self.r.random() < 0.6)

    def without_history(self) -> None:
        with self.T.no_grad():
            out = self.net(self.batch())
        self.note("requires_grad", out.requires_grad)
        self.note("out", out)

    def inference(self) -> None:
        self.net.eval()
        with self.T.inference_mode():
            out = self.net(self.batch())
            self.note("best", out.argmax(1))
        self.net.train()

    def frozen_features(self) -> None:
        cut = max(1, len(self.net) - 2)
        with self.T.no_grad():
            x = self.net[:cut](self.batch())
        self.optimizer.zero_grad()
        self.loss(self.net[cut:](x)).backward()
        self.optimizer.step()

    def detached_middle(self) -> None:
        x = self.batch()
        for k, layer in enumerate(self.net):
            x = layer(x)
            x = x.detach() if k == len(self.net) // 2 else x
        self.optimizer.zero_grad()
        self.loss(x).backward()
        self.optimizer.step()

    def modes(self) -> None:
        with self.T.set_grad_enabled(self.r.random() < 0.5):
            out = self.net(self.batch())
            with self.T.enable_grad():
                other = self.net(self.batch())
            self.note("flags", (out.requires_grad, other.requires_grad))
            self.note("outs", out + other)

    def intermediate(self) -> None:
        x, kept = self.batch(), []
        for layer in self.net:
            x = layer(x)
            if x.requires_grad:
                x.retain_grad()
                kept.append(x)
        self.loss(x).backward()
        for k, y in enumerate(kept):
            self.note(f"layer {k}", y.grad)
        self.optimizer.step()

    def hook_on_output(self) -> None:
        out, seen = self.net(self.batch()), []
        if out.requires_grad:
            out.register_hook(lambda g: (seen.append(g.detach().clone()), g * 0.5)[1])
        self.loss(out).backward()
        for g in seen:
            self.note("seen", g)
        self.optimizer.step()

    def total(self) -> None:
        total: Any = 0
        for _ in range(3):
            loss = self.loss(self.net(self.batch()))
            total = total + loss.detach()
        self.note("total", total)

    def predictions(self) -> None:
        out = self.net(self.batch(6))
        self.note("best", out.max(1).indices)
        self.note("order", out.argsort(1))
        self.note("close", self.T.allclose(out, out.clone()))

    def write_to_output(self) -> None:
        out = self.net(self.batch())
        out = out * 1.5
        out[0] = 0.25
        out[:, :1].mul_(2)
        self.loss(out).backward()
        self.optimizer.step()

    def write_refused(self) -> None:
        out = self.net(self.batch())
        y = out.exp()
        y.add_(1)
        y.sum().backward()

    def weight_write_refused(self) -> None:
        loss = self.loss(self.net(self.batch()))
        with self.T.no_grad():
            self.net[-1].weight.mul_(1.01)  # of other layers it depends on the kernel what a backward pass needs
        try:
            loss.backward()
        finally:
            self.optimizer.zero_grad()  # how far it came before it was refused

    def leaf_refused(self) -> None:
        self.parameter().mul_(0.5)

    def outputs_of_slices(self) -> None:
        out = self.net(self.batch())
        (self.loss(out) + out[1:, 0].sum() - out[::2].mean() + out.t()[0].prod() * 0.01).backward()
        self.optimizer.step()

    def text(self) -> None:
        self.note("text", repr(self.net).replace("torch.", "").replace("calque.", ""))

    def counts(self) -> None:
        self.note("parameters", [(n, tuple(p.shape), p.requires_grad, p.is_leaf) for n, p in self.net.named_parameters()])
        self.note("buffers", [(n, tuple(b.shape), str(b.dtype).split(".")[1]) for n, b in self.net.named_buffers()])

    def jacobian(self) -> None:
        layer = self.net[-1]
        found = self.T.autograd.functional.jacobian(layer, self.T.ones(2, layer.in_features, dtype=self.dtype))
        self.note("jacobian", found)
