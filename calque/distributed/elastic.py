"""What a job goes on with after a rank has died and `calque launch --restarts` has started all of them anew."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from calque.base.config import GANG, SNAPSHOTS, job_variables
from calque.base.errors import ArgumentError, CheckpointError, DistributedError
from calque.base.text import shown, type_name
from calque.data.loader import DataLoader
from calque.distributed.collectives import barrier
from calque.distributed.sampler import DistributedSampler
from calque.distributed.snapshots import Commit, Snapshots
from calque.distributed.world import world
from calque.functional.generators import get_rng_state, set_rng_state
from calque.io import load, save

_OWN = ("_parts", "_number", "_snapshots", "_gang")


class State:
    """The state of training, which survives the death of a rank: `commit` keeps it in the memory of `calque launch --restarts N`, and `restore` at
    the start of the program takes the newest commit that all ranks have made.

    parts: by name, what has `state_dict()` and `load_state_dict()` (model, optimizer, scheduler, DataLoader), or a value that `calque.save` writes;
    they are attributes of the state, and may be set. Rank 0's are everybody's; of a DataLoader, and of the random numbers, each rank keeps its own.

    With as many ranks as before, training goes on bit for bit with `use_deterministic_algorithms(True)`. With another number the rest of the epoch is
    shared out anew among them, if the sampler of the DataLoader is a `DistributedSampler`: no sample is lost, and none comes twice but those of steps
    after the commit, whose effect is gone.

    >>> import calque
    >>> from calque.distributed import State
    >>> state = State(model=calque.nn.Linear(2, 1), epoch=0, step=0)
    >>> state.restore(), state.epoch  # nobody has started this process anew
    (False, 0)
    >>> state.step += 1
    >>> state.commit()  # and nobody keeps this
    """

    def __init__(self, **parts: Any) -> None:
        for name in parts:
            if hasattr(type(self), name) or name in _OWN:
                raise ArgumentError(f"[State] expected names other than those of its methods, got {name!r}; choose another")
        variables = job_variables()
        self.__dict__["_parts"] = dict(parts)
        self.__dict__["_snapshots"] = Snapshots.from_text(variables[SNAPSHOTS]) if SNAPSHOTS in variables else None
        self.__dict__["_gang"] = int(variables.get(GANG, "0"))
        self.__dict__["_number"] = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(f"[State] expected one of {sorted(self.__dict__.get('_parts', {}))}, got {name!r}; pass it to State(...)") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._parts:
            raise AttributeError(f"[State] expected one of {sorted(self._parts)}, got {name!r}; pass it to State(...)")
        self._parts[name] = value

    def commit(self) -> None:
        """Keep the state as it is now. All ranks call this, between two steps; it waits for what is being computed. Does nothing in processes that
        were not started with `calque launch --restarts`."""
        if self._snapshots is None:
            return
        pg = world("State.commit")
        mine: dict[str, Any] = {"random": get_rng_state(), "loaders": {}, "parts": {}}
        for name, part in self._parts.items():
            if isinstance(part, DataLoader):
                mine["loaders"][name] = {"state": part.state_dict(), "batch_size": part.batch_size, "length": len(part.sampler)}  # type: ignore[arg-type]
                continue
            alone = hasattr(part, "consolidate_state_dict")
            if alone:
                part.consolidate_state_dict(0)
            if pg.rank() == 0 or not alone:  # of parameters that are shared out every rank gives its part
                value = part.state_dict() if hasattr(part, "state_dict") else part
                if pg.rank() == 0:
                    mine["parts"][name] = value
        stream = BytesIO()
        save(mine, stream)
        # When all have come here, all have written the commit before: what is overwritten now nobody will need.
        barrier()
        self.__dict__["_number"] += 1
        self._snapshots.write(pg.own, self._number, pg.size(), self._gang, stream.getvalue())

    def restore(self) -> bool:
        """Take up the newest commit; False, and nothing has changed, if there is none. All ranks call this, once they are what they were when the
        first commit was made: wrapped, with the same optimizers and loaders."""
        commits = [] if self._snapshots is None else self._snapshots.newest()
        if not commits:
            return False
        pg = world("State.restore")
        first = self._read(commits[0])
        here = first if pg.rank() == 0 else self._read(commits[pg.rank()]) if pg.rank() < len(commits) else None
        known = set(first["parts"]) | set(first["loaders"])
        if known != set(self._parts):
            raise CheckpointError(f"[State] expected the parts {sorted(known)} of the commit, got {sorted(self._parts)}; pass the same to State(...)")
        for name, value in first["parts"].items():
            part = self._parts[name]
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                self._parts[name] = value
        for name, saved in first["loaders"].items():
            if len(commits) == pg.size():
                own = (here or first)["loaders"][name]["state"]
                for which, state in own["samplers"].items():
                    getattr(self._parts[name], which).load_state_dict(state)  # first: how many batches there are depends on it
                self._parts[name].load_state_dict(own)
            else:
                _share_out_anew(name, self._parts[name], saved, len(commits))
        if here is not None:
            set_rng_state(here["random"])
        self.__dict__["_number"] = commits[0].number
        barrier()  # nobody overwrites what somebody still reads
        return True

    def _read(self, commit: Commit) -> Any:
        assert self._snapshots is not None
        try:
            return load(BytesIO(self._snapshots.read(commit)))
        except OSError as error:
            raise DistributedError(f"[State] expected a whole commit, got this: {error}") from error


def _share_out_anew(name: str, loader: Any, saved: dict[str, Any], ranks: int) -> None:
    """Let a loader go on behind what `ranks` other ranks have had of the epoch."""
    sampler, state = loader.sampler, saved["state"]
    if not isinstance(sampler, DistributedSampler) or loader.batch_size is None:
        raise DistributedError(
            f"[State] expected the loader {name!r} to have a DistributedSampler and a batch_size, as the job had {ranks} ranks before and the rest "
            f"of the epoch is shared out anew, got {type_name(sampler)} and {shown(loader.batch_size)}"
        )
    if state["pass"] is None:
        sampler.load_state_dict(state["samplers"]["sampler"])
    else:  # what the state has of the sampler is from before the pass
        sampler.go_on(state["samplers"]["sampler"], min(state["pass"]["delivered"] * saved["batch_size"], saved["length"]) * ranks)
