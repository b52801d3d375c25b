"""Objects that a program changes between hybridized calls: modules, their parts and attributes, hooks, functions, optimizers, what others hold.

A program is a list of lines that make a small network and train it by calls that are hybridized; whatever stands between two calls, each sees what it
would see as written, which PyTorch runs. All numbers are small integers in float64, so that both have the same bits.

`python -m tests.fuzz.mutations --count 10000 --seed 0` prints every mismatch, shrunk.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import types
import weakref
from typing import Any

import calque
from tests.fuzz.command import beside_pytorch, main, reported

WORLD = """
G = {"k": 1, "t": T.ones(3, dtype=T.float64)}
def act(h): return h.relu()
class Inner(T.nn.Module):
 def __init__(self, bias=True):
  super().__init__()
  self.lin = T.nn.Linear(3, 3, bias=bias).double()
  self.gain = 1
 def forward(self, x):
  return self.lin(x) * self.gain
class Net(T.nn.Module):
 factor = 1
 def __init__(self):
  super().__init__()
  self.a, self.b = Inner(), Inner(False)
  self.register_buffer("n", T.zeros((), dtype=T.float64))
  self.scale, self.mode, self.extra, self.parts, self.table, self.fail = 1, "act", None, [], {}, 0
  self.rest = T.nn.ModuleList()
 def forward(self, x):
  h = self.a(x)
  h = act(h) if self.mode == "act" else h.abs() if self.mode == "abs" else h
  self.n.add_(1)
  if self.fail == 1: raise ValueError("asked for")
  h = self.b(h) * self.scale * self.factor + G["t"] * G["k"]
  if self.extra is not None: h = h + self.extra
  for p in self.parts: h = h + p
  for key in self.table: h = h * self.table[key]
  for m in self.rest: h = m(h)
  if not self.training: h = h + 1
  return h
def tame(net):
 with T.no_grad():
  for p in net.parameters(): p.remainder_(3).sub_(1)
def made(net):
 with T.no_grad():
  for k, p in enumerate(net.parameters()): p.copy_((T.arange(p.numel(), dtype=T.float64).view(p.shape) + k) % 3 - 1)
 return net
def xs(k): return T.tensor([[float((k + i) % 3 - 1) for i in range(3)], [1.0, 0.0, float(k % 2)]], dtype=T.float64)
def step(x):
 optimizer.zero_grad()
 loss = net(x).sum()
 loss.backward()
 optimizer.step()
 return loss.detach()
def quiet(x):
 with T.no_grad(): return net(x) * 2
def twice(x):
 x = x.detach().requires_grad_()
 loss = (net(x) ** 2).sum()
 g, = T.autograd.grad(loss, x, create_graph=True)
 return loss.detach() + g.detach().sum()
net = made(Net())
optimizer = T.optim.SGD(net.parameters(), lr=1.0)
kept, handles = [], []
"""

CHANGES = (
    "net.scale = {n}", "net.mode = 'abs'", "net.mode = 'act'", "net.mode = 'none'", "net.extra = T.full((3,), {n}.0, dtype=T.float64)",
    "net.extra = None", "net.extra = T.nn.Parameter(T.ones(3, dtype=T.float64))", "net.extra is None or net.extra.data.add_(1)",
    "net.parts.append(T.full((3,), {n}.0, dtype=T.float64))", "net.parts and net.parts.pop()", "net.parts and net.parts[0].mul_({n})",
    "net.parts[:] = [p + 1 for p in net.parts]", "net.table['k'] = {n}", "net.table.clear()",
    "net.table['t'] = T.full((3,), {n}.0, dtype=T.float64)", "net.fail = 1 - net.fail", "net.fail = 0", "net.fail = 0",
    "net.a, net.b = net.b, net.a", "net.a.lin, net.b.lin = net.b.lin, net.a.lin", "net.a.gain = {n}", "net.b.gain = {n}",
    "net.a.lin.weight = T.nn.Parameter(net.a.lin.weight.detach() * 2)", "net.a.lin.weight.data = net.a.lin.weight.data.clone() + 1",
    "net.a.lin.weight.requires_grad_(False)", "net.a.lin.weight.requires_grad_(True)",
    "net.b.lin.weight.requires_grad_(not net.b.lin.weight.requires_grad)", "net.a.lin.bias = None", "net.b.lin.weight = net.a.lin.weight",
    "net.b.lin.bias = T.nn.Parameter(T.ones(3, dtype=T.float64))", "net.rest.append(Inner().double()); made(net)", "net.rest = T.nn.ModuleList()",
    "del net.rest[:]", "net.rest.append(T.nn.ReLU())", "Net.factor = {n}", "net.factor = {n}", "net.__dict__.pop('factor', None)", "G['k'] = {n}",
    "G['t'] = G['t'] + 1", "G['t'].add_(1)", "act = lambda h: h * {n}", "act = T.relu", "def act(h): return h.clamp(0, {n})",
    "net.a.forward = types.MethodType(lambda self, x: self.lin(x) + {n}, net.a)", "net.a.__dict__.pop('forward', None)",
    "Inner.forward = lambda self, x: self.lin(x) * self.gain + {n}", "Inner.forward = FORWARD", "optimizer.param_groups[0]['lr'] = {n}.0",
    "optimizer.param_groups[0]['momentum'] = {n} % 2 * 1.0", "optimizer.param_groups[0]['weight_decay'] = {n} % 2 * 1.0",
    "optimizer = T.optim.SGD(net.parameters(), lr=1.0)", "optimizer = T.optim.SGD(net.b.parameters(), lr={n}.0, momentum=1.0)",
    "optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))", "optimizer.state.clear()",
    "optimizer.param_groups[0]['maximize'] = {n} == 2", "optimizer.add_param_group(dict(params=[net.extra], lr=2.0))",
    "optimizer.param_groups[0]['params'].pop()", "handles.append(net.a.register_forward_hook(lambda m, i, o: o * {n}))",
    "handles.append(net.b.register_forward_pre_hook(lambda m, i: (i[0] + {n},)))",
    "handles.append(net.a.lin.weight.register_hook(lambda g: g * {n}))", "handles and handles.pop().remove()",
    "handles and handles.pop(0).remove()", "handles.append(net.a.register_full_backward_hook(lambda m, i, o: None))",
    "handles.append(net.a.lin.weight.register_hook(raising))", "handles.append(net.b.lin.weight.register_post_accumulate_grad_hook(grown))",
    "handles.append(net.b.register_forward_hook(raising))", "handles.append(net.a.register_forward_hook(lambda m, i, o: kept.append(o)))",
    "net.eval()", "net.train()", "net.a.eval()", "made(net)", "net.load_state_dict(pickle.loads(pickle.dumps(net.state_dict())))",
    "net = copy.deepcopy(net)", "net = copy.deepcopy(net); optimizer = T.optim.SGD(net.parameters(), lr=1.0)", "kept.append(copy.deepcopy(net))",
    "net = copy.copy(net)", "other = copy.copy(net); other.scale = {n}; see(show(other(xs({n}))))",
    "other = Net(); other.__dict__ = net.__dict__.copy(); other.mode = 'abs'; see(show(other(xs({n}))))", "optimizer = copy.copy(optimizer)",
    "optimizer = copy.deepcopy(optimizer)", "net, other = copy.deepcopy(net), net; see(show(other(xs({n}))))", "step, quiet = quiet, step",
    "scheduler = T.optim.lr_scheduler.StepLR(optimizer, 1, gamma=2.0)", "scheduler.step()", "net.b = net.a", "net.rest.append(net.a)",
    "handles.append(optimizer.register_step_post_hook(lambda *_: tame(net)))", "handles.append(optimizer.register_step_pre_hook(raising))",
    "net.train = types.MethodType(lambda self, mode=True: self, net)", "T.nn.Module.__setattr__(net, 'scale', {n})", "vars(net)['scale'] = {n}",
    "vars(net.a)['gain'] = {n}", "net._modules['a'] = net._modules['b']", "net._parameters['late'] = T.nn.Parameter(T.ones(3, dtype=T.float64))",
    "if not T.nn.utils.parametrize.is_parametrized(net.a.lin): net.a.lin._parameters['weight'] = T.nn.Parameter(T.ones(3, 3, dtype=T.float64))",
    "net._buffers['n'] = T.ones((), dtype=T.float64)", "net.a.lin.weight = None; made(net)", "net.a.lin = None", "net.a.lin = net.b.lin",
    "T.nn.utils.parametrize.register_parametrization(net.a.lin, 'weight', T.nn.Flatten(0, 0)) if {n} == 1 else None",
    "T.nn.utils.parametrize.is_parametrized(net.a.lin) and T.nn.utils.parametrize.remove_parametrizations(net.a.lin, 'weight')",
    "xs = lambda k: T.ones(2, 3, dtype=T.float64) * (k % 3)", "xs = lambda k: T.ones(k % 3 + 1, 3, dtype=T.float64)",
    "xs = lambda k: T.ones(3, 2, dtype=T.float64).t()", "xs = lambda k: net.a.lin.weight.detach()", "T.set_grad_enabled({n} > 1)",
    "T.set_grad_enabled(True)", "net.a = copy.deepcopy(net.a)", "net.zero_grad()", "net.zero_grad(set_to_none=False)", "net.n.zero_()",
    "net.n = T.zeros((), dtype=T.float64)", "net.register_buffer('n', net.n + 1)", "kept.append(net(xs({n})))", "kept and see(show(kept.pop()))",
    "kept and backward(kept.pop())", "kept.clear()", "gc.collect()", "net.a.lin.weight.detach().numpy()[0] = {n} - 1",
    "w = weakref.ref(net.extra) if net.extra is not None else None", "with T.no_grad(): net.a.lin.weight.copy_(net.b.lin.weight)",
    "net.apply(lambda m: setattr(m, 'gain', {n}))", "net.requires_grad_({n} > 1)", "net.a.lin.weight.grad = T.ones(3, 3, dtype=T.float64)",
    "net.b.lin.weight.grad = None", "net.a.lin.weight.mark = {n}", "kept.append((net(xs(k)) for k in range(4)))",
    "kept and hasattr(kept[-1], 'send') and see(show(next(kept[-1])))", "net.a.add_module('lin', copy.deepcopy(net.a.lin))",
    "setattr(net.a, 'lin', T.nn.Linear(3, 3).double()); made(net)", "net.a.lin.weight.data.zero_()", "net.parts = [net.a.lin.weight[0]]",
    "net.parts = (net.extra,) if net.extra is not None else []", "net.extra = net.a.lin.weight.detach()[1]",
    "G['t'] = net.a.lin.weight.detach().sum(0)",
)  # fmt: skip


class Text:
    """The lines of a random program."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        ways = ("", "net = hybridize(net)", "Net.forward = wrap(Net.forward)", "Inner.forward = FORWARD = wrap(Inner.forward)")
        self.lines = [rng.choice(ways)]
        self.lines += [f"{name} = wrap({name})" for name in ("step", "quiet", "twice") if rng.random() < 0.7]
        calls = rng.choice((["step"], ["step"], ["step", "quiet"], ["quiet", "twice", "step"], ["net"]))
        number = 0
        for _ in range(rng.randint(2, 9)):
            for _ in range(rng.choice((1, 2, 3, 4, 4))):
                number += rng.choice((0, 1))
                call = f"{rng.choice(calls)}(xs({number}))"
                self.lines.append(f"{f'see(show({call}))' if rng.random() < 0.8 else call}; tame(net)")
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                self.lines.append(rng.choice(CHANGES).format(n=rng.randint(1, 3)))


def grown(p: Any) -> None:
    p.grad.mul_(2)


def raising(*_: Any) -> None:
    raise KeyError("hook")


def seen(lines: list[str], T: Any) -> list[Any]:
    """What a library shows: what lines look at, which of them raise, and at the end all values and gradients."""
    found: list[Any] = []
    scope: dict[str, Any] = {
        "T": T, "copy": copy, "gc": gc, "pickle": pickle, "types": types, "weakref": weakref,
        "wrap": calque.compile if T is calque else lambda f: f, "hybridize": lambda m: (m.hybridize() if T is calque else None) or m,
        "raising": raising, "grown": grown,
        "see": lambda x: found.append((line, x)), "show": lambda t: t.detach().tolist(), "backward": lambda t: t.sum().backward(),
    }  # fmt: skip
    exec(WORLD, scope)  # noqa: S102 - our own text
    scope["FORWARD"] = scope["Inner"].forward
    for line in lines:
        try:
            exec(line, scope)  # noqa: S102 - our own text
        except Exception as error:
            found.append((line, "refused"))
            error.__traceback__ = None
    T.set_grad_enabled(True)
    net = scope["net"]
    raised = any(isinstance(x, str) for _, x in found)  # then some gradients are there in PyTorch, none here
    for name, t in net.named_parameters():
        found.append((name, t.detach().tolist(), None if raised or t.grad is None else t.grad.tolist(), t.requires_grad))
    found += [("n", net.n.tolist()), ("t", scope["G"]["t"].tolist()), ("training", net.training)]
    return found


def check(seed: int) -> str:
    """"" or the mismatch of a seed with its program."""
    return reported(seed, Text(seed).lines, lambda lines: beside_pytorch(lines, seed, seen, overflows=True), "tests.fuzz.mutations")


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.mutations", __doc__, check))
