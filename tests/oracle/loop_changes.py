"""Events of a random training loop that change the network, its optimizer or how it runs (see `loop_events`)."""

from __future__ import annotations

import copy
import gc
from typing import Any

import calque
from tests.oracle.loop_events import Reads


class Weights(Reads):
    """Writes to parameters, gradients and buffers."""

    def scale_weight(self) -> None:
        with self.T.no_grad():
            self.parameter().mul_(0.9)

    def write_row(self) -> None:
        with self.T.no_grad():
            p = self.parameter()
            p.view(-1)[: p.numel() // 2].add_(0.01)

    def write_data(self) -> None:
        p = self.parameter()
        p.data = p.data * 0.95 + 0.001

    def write_through_data(self) -> None:
        self.parameter().data[:1].mul_(0.5)

    def write_detached(self) -> None:
        self.parameter().detach().clamp_(-0.5, 0.5)

    def copy_weight(self) -> None:
        p = self.parameter()
        with self.T.no_grad():
            p.copy_(p.flip(0) * 0.9)

    def new_weight(self) -> None:
        layer = self.net[-1]
        layer.weight = self.T.nn.Parameter(layer.weight.detach() * 0.8)

    def clip_norm(self) -> None:
        self.backward()
        self.note("norm", self.T.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1, self.r.choice([2.0, 1.0, float("inf")])))
        self.optimizer.step()

    def clip_value(self) -> None:
        self.backward()
        self.T.nn.utils.clip_grad_value_(self.net.parameters(), 0.01)
        self.optimizer.step()

    def total_norm(self) -> None:
        self.backward()
        self.note("norm", self.T.nn.utils.get_total_norm([p.grad for p in self.net.parameters() if p.grad is not None]))

    def scale_gradients(self) -> None:
        self.backward()
        for p in self.net.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5)
        self.optimizer.step()

    def some_gradients(self) -> None:
        self.backward()
        self.parameter().grad = None
        self.optimizer.step()

    def set_gradient(self) -> None:
        p = self.parameter()
        p.grad = self.T.full_like(p, 0.01)
        self.optimizer.step()

    def replace_gradients(self) -> None:
        self.backward()
        kept = [p.grad for p in self.net.parameters()]
        for p in self.net.parameters():
            p.grad = None if p.grad is None else p.grad.sign() * 0.01
        self.optimizer.step()
        for g in kept:
            self.note("kept", g)

    def shared_gradient(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        p = self.parameter()
        if p.grad is not None:
            g = p.grad
            self.backward()
            self.note("same", g is p.grad)
            self.note("gradient", g)

    def average(self) -> None:
        """An exponential moving average of the weights, used in turn with them."""
        if not self.kept or len(self.kept) != len(list(self.net.parameters())):
            self.kept = [p.detach().clone() for p in self.net.parameters()]
        with self.T.no_grad():
            for mean, p in zip(self.kept, self.net.parameters()):
                mean.lerp_(p, 0.1)
        self.note("mean", self.kept[0])

    def swap(self) -> None:
        if len(self.kept) == len(list(self.net.parameters())):
            for mean, p in zip(self.kept, self.net.parameters()):
                p.data, mean.data = mean.data, p.data

    def vector(self) -> None:
        utils, parameters = self.T.nn.utils, list(self.net.parameters())
        flat = utils.parameters_to_vector(parameters)
        utils.vector_to_parameters((flat * 0.99).detach(), parameters)

    def initialise(self) -> None:
        nn = self.T.nn

        def again(module: Any) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.05)
                nn.init.eye_(module.weight)

        self.module("Linear").apply(again)

    def reset_statistics(self) -> None:
        module = self.module("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
        if hasattr(module, "reset_running_stats"):
            module.reset_running_stats()

    def momentum_of_statistics(self) -> None:
        module = self.module("BatchNorm1d", "BatchNorm2d")
        if hasattr(module, "running_mean"):
            module.momentum = 0.3

    def statistics_in_eval(self) -> None:
        for module in self.net.modules():
            if "BatchNorm" in type(module).__name__:
                module.eval()

    def write_buffer(self) -> None:
        for buffer in self.net.buffers():
            if buffer.is_floating_point():
                buffer.mul_(0.9).add_(0.01)

    def new_buffer(self) -> None:
        self.net.register_buffer("extra", self.T.ones(2, dtype=self.dtype), persistent=self.r.random() < 0.5)
        self.net.extra += 1


class Structure(Weights):
    """Freezing, hooks, copies, state dicts, optimizers, other ways to run."""

    def freeze_one(self) -> None:
        self.parameter().requires_grad_(False)

    def freeze_module(self) -> None:
        self.module("Linear", "Conv2d", "LSTM").requires_grad_(False)

    def freeze_all(self) -> None:
        self.net.requires_grad_(False)
        self.net[-1].requires_grad_(True)

    def unfreeze(self) -> None:
        self.net.requires_grad_(True)

    def save(self) -> None:
        self.saved = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.saved_steps = copy.deepcopy(self.optimizer.state_dict())

    def save_alias(self) -> None:
        self.saved = self.net.state_dict()

    def load(self) -> None:
        if self.saved is not None:
            self.note("keys", [list(x) for x in self.net.load_state_dict(self.saved, strict=False)])

    def load_assigned(self) -> None:
        values = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.net.load_state_dict(values, assign=True)
        self.renew(), self.reschedule()

    def load_steps(self) -> None:
        if self.saved_steps is not None:
            self.optimizer.load_state_dict(self.saved_steps)

    def load_refused(self) -> None:
        values = dict(self.net.state_dict())
        values.pop(next(iter(values)))
        self.net.load_state_dict(values)

    def save_schedule(self) -> None:
        state = self.schedule.state_dict()
        self.schedule.load_state_dict(state)
        self.note("epoch", self.schedule.last_epoch)

    def deep_copy(self) -> None:
        self.net = copy.deepcopy(self.net)
        self.renew(), self.reschedule()

    def copy_of_all(self) -> None:
        self.net, self.optimizer = copy.deepcopy((self.net, self.optimizer))
        self.reschedule()

    def compare_copy(self) -> None:
        twin = copy.deepcopy(self.net).eval()
        self.train()
        with self.T.no_grad():
            self.note("twin", twin(self.batch()))

    def change_schedule(self) -> None:
        self.renew(), self.reschedule()

    def schedule_step(self) -> None:
        if self.schedule_name == "ReduceLROnPlateau":
            self.schedule.step(self.r.choice([0.5, 1.0]))
        else:
            self.schedule.step()
        self.note("rate", [float(g["lr"]) for g in self.optimizer.param_groups])

    def rate(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * 0.7

    def decay(self) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = 0.02

    def momentum(self) -> None:
        group = self.optimizer.param_groups[0]
        if "betas" in group:
            group["betas"] = (0.85, 0.95)
        elif "momentum" in group:
            group["momentum"] = 0.7

    def more_parameters(self) -> None:
        extra = self.T.nn.Linear(self.plan.classes, self.plan.classes).to(self.dtype)
        with self.T.no_grad():
            extra.weight.copy_(self.T.eye(self.plan.classes, dtype=self.dtype))
            extra.bias.zero_()
        self.net.append(extra)
        self.optimizer.add_param_group({"params": list(extra.parameters()), "lr": 0.002})

    def replace_activation(self) -> None:
        for name, module in self.net.named_modules():
            if type(module).__name__ in ("ReLU", "GELU", "Tanh", "ELU", "Identity"):
                self.net.set_submodule(name, self.T.nn.SiLU())
                break

    def forward_hook(self) -> None:
        self.handles.append(self.net[0].register_forward_hook(lambda m, args, out: out * 0.8))

    def forward_pre_hook(self) -> None:
        self.handles.append(self.net[-1].register_forward_pre_hook(lambda m, args: (args[0] * 0.9,)))

    def backward_hook(self) -> None:
        seen: list[Any] = []
        handle = self.net[-1].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].detach().clone()))
        self.backward(kind=12)
        handle.remove()
        for g in seen:
            self.note("seen", g)

    def backward_hook_kept(self) -> None:
        self.handles.append(self.net[-1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,) if gi[0] is not None else None))

    def parameter_hook(self) -> None:
        p = self.parameter()
        if p.requires_grad:
            self.handles.append(p.register_hook(lambda g: g * 0.5))

    def after_gradient(self) -> None:
        p = self.parameter()
        if p.requires_grad:
            self.handles.append(p.register_post_accumulate_grad_hook(lambda q: (q.grad.mul_(0.5), None)[1]))

    def step_hook(self) -> None:
        self.handles.append(self.optimizer.register_step_pre_hook(self._double_gradients))

    @staticmethod
    def _double_gradients(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad.mul_(2)

    def step_in_backward(self) -> None:
        """Every parameter is updated as soon as its gradient is there."""
        handles = []
        for p in self.net.parameters():
            if p.requires_grad:
                own = self.T.optim.SGD([p], lr=0.01)
                handles.append(p.register_post_accumulate_grad_hook(lambda q, own=own: own.step()))
        self.backward()
        for handle in handles:
            handle.remove()

    def remove_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    def compiled(self) -> None:
        if self.T is calque:
            self.net.hybridize()

    def interpreted(self) -> None:
        if self.T is calque:
            self.net.hybridize(False)

    def compiled_layer(self) -> None:
        if self.T is calque:
            self.module("Linear", "Conv2d", "LSTM", "Residual").hybridize()

    def compiled_step(self) -> None:
        def step(x: Any, target: Any) -> Any:
            self.optimizer.zero_grad()
            loss = ((self.net(x) - target) ** 2).mean()
            loss.backward()
            self.optimizer.step()
            return loss

        call = calque.compile(step) if self.T is calque else step
        for _ in range(4):
            x = self.batch()
            target = self.T.tensor(self.values.normal(size=(4, self.plan.classes)), dtype=self.dtype)
            self.note("loss", call(x, target))

    def compiled_loss(self) -> None:
        call: Any = calque.compile(self.net.__call__) if self.T is calque else self.net
        for _ in range(3):
            self.optimizer.zero_grad()
            self.loss(call(self.batch())).backward()
            self.optimizer.step()

    def other_dtype(self) -> None:
        twin = copy.deepcopy(self.net)
        twin.to(self.T.float64)
        twin.double()
        self.note("out", twin(self.batch(dtype=self.T.float64)))

    def collect(self) -> None:
        self.optimizer.zero_grad()
        gc.collect()

    def functional_layer(self) -> None:
        layer, x = self.net[-1], self.batch()
        if hasattr(layer, "weight"):
            x = self.net[:-1](x)
            self.loss(self.T.nn.functional.linear(x, layer.weight * 2, layer.bias)).backward()
            self.optimizer.step()

    def mixed_weights(self) -> None:
        """Two networks' weights mixed with history, as in meta-learning."""
        p = self.parameter()
        mixed = (p * p).sum() + self.loss(self.net(self.batch()))
        mixed.backward()
        self.optimizer.step()

    def backward_of_parameters(self) -> None:
        self.loss(self.net(self.batch())).backward(inputs=[self.parameter()])

    def refused_input(self) -> None:
        self.net(self.T.ones(2, 99, dtype=self.dtype))

    def refused_dtype(self) -> None:
        self.net[-1](self.T.ones(2, self.net[-1].in_features, dtype=self.T.float32 if self.dtype is self.T.float64 else self.T.float64))


EVENTS = sorted(name for c in Structure.__mro__[:4] for name in vars(c) if not name.startswith("_") and callable(getattr(Structure, name)))
