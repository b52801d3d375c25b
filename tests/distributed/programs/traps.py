"""What could give wrong gradients without a word on two ranks; run by test_training.py. Every function is one case, with what one process gives."""

import copy
import gc

import numpy as np

import calque
import calque.distributed as dist
from calque import nn
from calque.utils.checkpoint import checkpoint

dist.init_process_group("mpi", timeout=30)
rank, size = dist.get_rank(), dist.get_world_size()
calque.set_default_dtype(calque.float64)
wrap = dist.DistributedDataParallel


def equal(got, wanted, bound=1e-12):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape and np.abs(got - wanted).max(initial=0.0) <= bound, (got, wanted)


def same(t):
    """The value is the same on all ranks."""
    found = [calque.zeros(*t.shape, dtype=t.dtype) for _ in range(size)]
    dist.all_gather(found, t.detach().clone())
    assert found[0].tolist() == found[1].tolist(), found


class Two(nn.Module):
    """One parameter for each branch."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x, branch):
        return (self.a, self.b)[branch](x)

    def grads(self):
        return [None if p.grad is None else p.grad.item() for p in (self.a.weight, self.b.weight)]


def scalar(**options):
    model = nn.Linear(1, 1, bias=False)
    return model, wrap(model, **options)


def a_backward_that_failed_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    ours = wrap(model)

    def fail(p):
        raise ValueError("of the user's")

    handles = [part.weight.register_post_accumulate_grad_hook(fail) for part in model]
    for _ in range(2):
        try:
            ours(calque.ones(1, 2)).sum().backward()
            raise SystemExit("the hook did not raise")
        except ValueError:
            pass
    for handle in handles:
        handle.remove()
    model.zero_grad()
    ours(calque.ones(1, 2) * (rank + 1)).sum().backward()
    for part in model:
        same(part.weight.grad)


def what_accumulated_stays_where_a_step_does_not_use_a_parameter():
    model = Two()
    ours = wrap(model, find_unused_parameters=True)
    ours(calque.ones(1, 1) * 2, 0).sum().backward()
    ours(calque.ones(1, 1) * 3, 1).sum().backward()
    assert model.grads() == [2, 3]
    ours(calque.ones(1, 1), rank).sum().backward()
    assert model.grads() == [2.5, 3.5]
    model.zero_grad()
    with ours.no_sync():
        ours(calque.ones(1, 1) * 2 * (rank + 1), 0).sum().backward()
    ours(calque.ones(1, 1) * 3 * (rank + 1), 1).sum().backward()
    assert model.grads() == [3, 4.5]


def parameters_that_come_later_are_named():
    frozen, ours = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), []
    frozen[0].weight.requires_grad_(False)
    grown = nn.Sequential(nn.Linear(1, 1, bias=False))
    for model in (frozen, grown):
        ours.append(wrap(model))
    frozen[0].weight.requires_grad_(True)
    grown.append(nn.Linear(1, 1, bias=False))
    for net, name in zip(ours, ("0.weight", "1.weight")):
        try:
            net(calque.ones(1, 1) * (rank + 1)).sum().backward()
            raise SystemExit(f"nobody named {name}")
        except RuntimeError as error:
            assert name in str(error) and "wrap the module again" in str(error), error


def a_dtype_that_changes_after_wrapping():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    ours = wrap(model)
    model[0].to(calque.float32)
    model.forward = lambda x: model[1](model[0](x.float()).double())
    ours(calque.ones(1, 2) * (rank + 1)).sum().backward()
    for p in model.parameters():
        assert p.grad.dtype is p.dtype
        same(p.grad)
    equal(model[1].bias.grad, [1.0])
    equal(model[0].weight.grad, np.asarray(model[1].weight.detach().float()).T * np.float32([1.5, 1.5]), 1e-6)


def gradients_that_share_memory():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(calque.ones(*shape)) for shape in ((3, 2), (3, 2), (2, 3)))

        def forward(self, x):
            return (self.a + self.b).sum() * x.sum() + self.c.t().sum() * 2

    model = Sums()
    ours = wrap(model)
    ours(calque.ones(1) * (rank + 1)).backward()
    with calque.no_grad():
        model.a.grad.mul_(2)
    ours(calque.ones(1) * (rank + 1)).backward()
    for p, wanted in ((model.a, 4.5), (model.b, 3.0), (model.c, 4.0)):
        equal(p.grad, np.full(tuple(p.shape), wanted))


def complex_gradients_in_half():
    class Phase(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(calque.ones(3, dtype=calque.complex128))

        def forward(self, x):
            return (self.a * (x * 1j + 1)).imag.sum()

    for hook in (dist.hooks.fp16_compress_hook, None):
        model = Phase()
        ours = wrap(model)
        if hook is not None:
            ours.register_comm_hook(None, hook)
        ours(calque.ones(3) * (rank + 1)).backward()
        equal(model.a.grad, np.full(3, 1.5 + 1j))


def samples_are_those_that_the_gradients_are_of():
    model, ours = scalar(weight="samples")
    rows = 1 + 2 * rank
    if rank == 0:
        ours(calque.ones(100, 1))  # only looked at
    ours(calque.ones(rows, 1) * (rank + 1)).mean().backward()
    equal(model.weight.grad, [[1.75]])
    model.zero_grad()
    losses = [ours(calque.ones(rows, 1) * (rank + 1)).mean() for _ in range(2)]
    for loss in losses:
        loss.backward()
    equal(model.weight.grad, [[3.5]])
    model.zero_grad()
    x = calque.ones(rows, 1, requires_grad=True)
    calque.autograd.grad(ours(x).sum(), x)  # another pass, which gives no parameter a gradient
    ours(calque.ones(rows, 1) * (rank + 1)).mean().backward()
    equal(model.weight.grad, [[1.75]])
    model = nn.Linear(2, 2)
    ours = wrap(model, weight="samples")
    x = calque.ones(4 if rank == 0 else 0, 2)
    ours(x).square().sum().div(max(len(x), 1) if rank else 4).mul(calque.tensor(float("nan")) if rank else 1.0).backward()
    assert np.isfinite(np.asarray(model.weight.grad)).all()  # a rank without samples has no say, though its mean is no number


def what_outlives_the_wrapper():
    model, ours = scalar()
    twin = copy.deepcopy(ours.module)
    if rank == 0:
        twin(calque.ones(1, 1)).sum().backward()
        assert twin.weight.grad.item() == 1
    del ours
    gc.collect()
    model(calque.ones(1, 1) * (rank + 1)).sum().backward()
    assert model.weight.grad.item() == rank + 1
    again = wrap(wrap(model).module)
    model.zero_grad()
    again(calque.ones(1, 1) * (rank + 1)).sum().backward()
    assert model.weight.grad.item() == 1.5


def passes_inside_passes():
    class Inner(calque.autograd.Function):
        """A rule that runs a backward pass of its own, which reaches parameters."""

        @staticmethod
        def forward(ctx, x, part):
            ctx.part = part
            ctx.save_for_backward(x)
            return part(x).detach()

        @staticmethod
        def backward(ctx, grad):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with calque.enable_grad():
                ctx.part(x).backward(grad)
            return x.grad, None

    class Net(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.first, self.middle, self.last, self.how = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1), how

        def forward(self, x):
            x = self.first(x)
            if self.how == "function":
                x = Inner.apply(x, self.middle)
            else:
                x = checkpoint(self.middle, x, use_reentrant=self.how == "reentrant")
            return self.last(x)

    for how in ("function", "reentrant", "checkpoint"):
        calque.manual_seed(3)
        model = Net(how)
        ours = wrap(model)
        for _ in range(2):
            model.zero_grad()
            ours(calque.ones(2, 2) * (rank + 1)).sum().backward()
        for p in model.parameters():
            same(p.grad)
        alone = Net(how)
        alone.load_state_dict(model.state_dict())
        (sum(alone(calque.ones(2, 2) * (r + 1)).sum() for r in range(size)) / size).backward()
        for p, q in zip(model.parameters(), alone.parameters()):
            equal(p.grad, q.grad)


def second_derivatives():
    def loss(net, r):
        x = (calque.ones(2, 2) * (r + 1)).requires_grad_()
        y = net(x).sum()
        return y + calque.autograd.grad(y, x, create_graph=True)[0].square().sum()

    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    ours = wrap(model)
    loss(ours, rank).backward()
    alone = copy.deepcopy(model)
    alone.zero_grad()
    ((loss(alone, 0) + loss(alone, 1)) / 2).backward()
    for p, q in zip(model.parameters(), alone.parameters()):
        if q.grad is not None:
            equal(p.grad, q.grad)


def gradients_are_kept_and_parameters_shared():
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    ours, kept, wanted = wrap(model), None, None
    for k in range(6):
        ours(calque.ones(4, 300) * (rank + k)).sum().backward()
        if k == 1:
            kept, wanted = model[1].bias.grad, model[1].bias.grad.tolist()
        model.zero_grad()
        for _ in range(4):
            (calque.randn(300, 300) @ calque.randn(300, 300)).sum().item()
    assert kept.tolist() == wanted

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x):
            return self.out(self.into(x))

    model = Tied()
    ours = wrap(model)
    ours(calque.tensor([rank, 2])).square().mean().backward()
    alone = Tied()
    alone.load_state_dict(model.state_dict())
    (sum(alone(calque.tensor([r, 2])).square().mean() for r in range(2)) / 2).backward()
    equal(model.into.weight.grad, alone.into.weight.grad)


def uneven_batches_where_ranks_count_alike():
    """As in PyTorch: the mean of the ranks' losses, also through statistics over all ranks, and in `join`."""
    calque.manual_seed(0)
    x = calque.randn(10, 4)
    parts = (x[:3], x[3:])
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
    alone = copy.deepcopy(model)
    ours = wrap(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    alone.load_state_dict(ours.module.state_dict())
    ours(parts[rank]).square().mean().backward()
    y = alone(x).square()
    ((y[:3].mean() + y[3:].mean()) / 2).backward()
    for p, q in zip(ours.parameters(), alone.parameters()):
        equal(p.grad, q.grad)
    for initial, wanted in ((True, 3.0), (False, 6.0)):
        model, ours = scalar()
        with ours.join(divide_by_initial_world_size=initial):
            for k in range(2 + rank):
                model.zero_grad()
                ours(calque.ones(1, 1) * (6 if k == 2 else 1)).sum().backward()
            if rank == 1:
                equal(model.weight.grad, [[wanted]])


def hooks_of_the_users_that_call_ours():
    for hook, bound in ((dist.hooks.allreduce_hook, 1e-12), (dist.hooks.fp16_compress_hook, 1e-3), (dist.hooks.bf16_compress_hook, 1e-2)):
        model = Two()
        ours = wrap(model, find_unused_parameters=True)
        ours.register_comm_hook(None, lambda state, bucket, hook=hook: hook(state, bucket))
        ours(calque.ones(1, 1) * 3, 0).sum().backward()
        equal(model.a.weight.grad, [[3.0]], bound)
        assert model.b.weight.grad is None
        model.zero_grad()
        ours(calque.ones(1, 1) * 3, rank).sum().backward()
        equal(model.grads(), [1.5, 1.5], bound)


CASES = [value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__" and type(value) is type(equal)]
for case in CASES:
    if case not in (equal, same, scalar):
        try:
            case()
        except BaseException:
            print("in", case.__name__, flush=True)
            raise
dist.barrier()
print("all is well")
