"""Random models, some of whose parts are units of their own, against one process that has what all ranks have; run by test_sharded.py with a
first seed and a count."""

import copy
import random

import fuzz
import numpy as np

import calque
import calque.distributed as dist

rank, size = fuzz.rank, fuzz.size


def program(seed):
    rng = random.Random(seed)
    calque.manual_seed(seed)
    model = fuzz.Net(rng)
    twins = [copy.deepcopy(model) for _ in range(size)]
    tied = len(model.branches) > 1 and model.branches[1].weight is model.branches[0].weight
    reshard = rng.choice([True, False, None])
    for part in (model.first, model.last, *([] if tied else model.branches)):
        if rng.random() < 0.6:
            dist.fully_shard(part, reshard_after_forward=reshard)
    make, options = rng.choice([(calque.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (calque.optim.SGD, {"lr": 0.05, "weight_decay": 0.1})])
    optimizers = [make(net.parameters(), **options) for net in (model, *twins)]
    dist.fully_shard(model, reshard_after_forward=reshard)
    branches = list(range(len(model.branches)))
    for step in range(rng.randint(1, 4)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for k in range(rng.randint(1, 3)):
            again, looks = rng.random() < 0.2, rng.random() < 0.2
            which = [*branches, *rng.sample(branches, rng.randint(0, len(branches)))]  # all of them: what a unit does not use gets zeros, not None
            rng.shuffle(which)
            for r in range(size):
                x = calque.randn(rng.randint(2, 6), 4, generator=calque.Generator().manual_seed(hash((seed, step, k, r))))
                for _ in range(2 if again else 1):
                    fuzz.loss_of(twins[r](x, which)).backward()
                if r == rank:
                    if looks:
                        with calque.no_grad():
                            model(x, which)
                    loss = fuzz.loss_of(model(x, which))
                    loss.backward(retain_graph=again)
                    if again:
                        loss.backward()
        for parameters in zip(*(net.parameters() for net in twins)):
            grads = [p.grad for p in parameters]
            if all(g is None for g in grads):
                continue
            mean = sum(g for g in grads if g is not None) / size
            for p in parameters:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        for name, t in twins[0].state_dict().items():
            if "running" in name or "num_batches" in name:
                continue
            found = model.state_dict()[name]
            bound = 1e-5 if twins[0].scale.dtype is calque.float32 else 1e-10
            x, y = np.asarray(found), np.asarray(t)
            text = f"seed {seed} step {step} {name}: {x} instead of {y}, {model.way}, reshard {reshard}"
            assert np.abs(x - y).max(initial=0) <= bound * max(1.0, np.abs(y).max(initial=0)), text


if __name__ == "__main__":
    fuzz.run(program)
