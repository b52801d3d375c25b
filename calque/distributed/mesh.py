"""`DeviceMesh`: the ranks of a job in rows and columns, with a group for each row of each dimension."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown
from calque.distributed.group import ProcessGroup
from calque.distributed.world import WORLD, init_process_group, new_group, world
from calque.functional.common import is_tensor
from calque.functional.creation import tensor


class DeviceMesh:
    """Ranks of the job as an array. All ranks of the job make the same meshes, in the same order, as each makes groups.

    device_type: "cpu". mesh: the ranks, as nested lists, a NumPy array or a tensor of whole numbers, each rank once. mesh_dim_names: a name for each
    dimension (default: none), by which parts of the mesh are taken: `mesh["rows"]` has the ranks of this one's row.

    `get_group(dim)` is the process group of the ranks that differ from this one in that dimension alone; `fully_shard(module, mesh=mesh["rows"])`
    takes a mesh of one dimension. A rank that is in no place of the mesh may ask for its shape alone.

    Raises ArgumentError for ranks that are not there or come twice, and for other names than dimensions; DistributedError outside of a job.

    >>> import calque.distributed as dist
    >>> dist.DeviceMesh("cpu", [0, 1])
    Traceback (most recent call last):
    calque.base.errors.DistributedError: [DeviceMesh] expected a process group: Default process group has not been initialized, ...
    """

    def __init__(self, device_type: str, mesh: Any, *, mesh_dim_names: Any = None) -> None:
        whole = world("DeviceMesh")
        ranks = _ranks(device_type, mesh, whole.size())
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if names is not None and (len(names) != ranks.ndim or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names)):
            raise ArgumentError(f"[DeviceMesh] expected {ranks.ndim} different names for the dimensions of {list(ranks.shape)}, got {shown(names)}")
        groups = []
        for dim in range(ranks.ndim):
            mine: Any = None
            for row in np.moveaxis(ranks, dim, -1).reshape(-1, ranks.shape[dim]).tolist():
                made = whole if row == list(whole.ranks) else new_group(row)  # members of other rows call it as well
                mine = made if whole.own in row else mine
            groups.append(mine)
        self._set(ranks, names, groups)

    def _set(self, ranks: Any, names: tuple[str, ...] | None, groups: list[Any]) -> None:
        self._ranks, self._names, self._groups = ranks, names, groups
        self.device_type = "cpu"

    @staticmethod
    def from_group(group: Any, device_type: str, mesh: Any = None, *, mesh_dim_names: Any = None) -> DeviceMesh:
        """The mesh of one dimension of a group that there is; `mesh`, if it is given, must be its ranks."""
        if not isinstance(group, ProcessGroup):
            raise ArgumentError(f"[DeviceMesh] expected a process group of which this process is a member, got {shown(group)}")
        ranks = _ranks(device_type, list(group.ranks) if mesh is None else mesh, world("DeviceMesh").size())
        if ranks.tolist() != list(group.ranks):
            raise ArgumentError(f"[DeviceMesh] expected the ranks of the group, {list(group.ranks)}, got {shown(ranks.tolist())}; leave mesh out")
        made = DeviceMesh.__new__(DeviceMesh)
        made._set(ranks, None if mesh_dim_names is None else tuple(mesh_dim_names), [group])
        return made

    def __repr__(self) -> str:
        named = "" if self._names is None else f", mesh_dim_names={self._names}"
        return f"DeviceMesh('{self.device_type}', {self._ranks.tolist()}{named})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._names == other._names and np.array_equal(self._ranks, other._ranks)

    def __hash__(self) -> int:
        return hash((self._names, self._ranks.shape, self._ranks.tobytes()))

    @property
    def mesh(self) -> Any:
        """The ranks as a tensor of int64."""
        return tensor(self._ranks.tolist())

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the dimensions."""
        return self._names

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks there are along each dimension."""
        return tuple(self._ranks.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self._ranks.ndim)

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks, of all or along a dimension."""
        return int(self._ranks.size if mesh_dim is None else self._ranks.shape[mesh_dim])

    def get_rank(self) -> int:
        """This process's rank in the job."""
        return world("DeviceMesh").rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Where this process is; None if it is not in the mesh."""
        found = np.argwhere(self._ranks == self.get_rank())
        return tuple(int(k) for k in found[0]) if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This process's place along a dimension, which need not be said where there is one."""
        return self._group(mesh_dim).rank()

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The group of the ranks along a dimension, which need not be said where there is one."""
        return self._group(mesh_dim)

    def get_all_groups(self) -> list[ProcessGroup]:
        """`get_group` of each dimension."""
        return [self._group(dim) for dim in range(self.ndim)]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        dims = [self._dim(name) for name in names]
        if dims != sorted(set(dims)):
            raise ArgumentError(f"[DeviceMesh] expected different names, in the order of {self._names}, got {shown(mesh_dim_names)}")
        place = self.get_coordinate()
        if place is None:
            raise self._stranger()
        made = DeviceMesh.__new__(DeviceMesh)
        part = self._ranks[tuple(slice(None) if dim in dims else k for dim, k in enumerate(place))]
        made._set(part, names, [self._groups[dim] for dim in dims])
        return made

    def _stranger(self) -> DistributedError:
        return DistributedError(f"[DeviceMesh] expected one of the ranks {self._ranks.reshape(-1).tolist()} of the mesh, got rank {self.get_rank()}")

    def _dim(self, mesh_dim: int | str) -> int:
        known = self._names or ()
        if mesh_dim in known:
            return known.index(mesh_dim)
        if isinstance(mesh_dim, int) and not isinstance(mesh_dim, bool) and -self.ndim <= mesh_dim < self.ndim:
            return mesh_dim % self.ndim
        raise ArgumentError(f"[DeviceMesh] expected a dimension from 0 to {self.ndim - 1}, or one of the names {known}, got {shown(mesh_dim)}")

    def _group(self, mesh_dim: int | str | None) -> ProcessGroup:
        if mesh_dim is None and self.ndim > 1:
            raise ArgumentError(f"[DeviceMesh] expected mesh_dim, as the mesh has {self.ndim} dimensions, got None")
        found = self._groups[0 if mesh_dim is None else self._dim(mesh_dim)]
        if found is None:
            raise self._stranger()
        return found  # type: ignore[no-any-return]


def _ranks(device_type: Any, mesh: Any, size: int) -> Any:
    """The ranks as an array."""
    if device_type != "cpu":
        raise ArgumentError(f"[DeviceMesh] expected device_type 'cpu', got {shown(device_type)}; ranks communicate from CPUs")
    ranks = np.asarray(mesh.tolist() if is_tensor(mesh) else mesh)
    if ranks.dtype.kind not in "iu" or not ranks.ndim or not ranks.size:
        raise ArgumentError(f"[DeviceMesh] expected ranks as nested lists of whole numbers, got {shown(mesh)}")
    if len(set(ranks.reshape(-1).tolist())) < ranks.size or not (ranks.min() >= 0 and ranks.max() < size):
        raise ArgumentError(f"[DeviceMesh] expected different ranks from 0 to {size - 1}, got {shown(ranks.tolist())}")
    return ranks


def init_device_mesh(device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: Any = None, backend_override: Any = None) -> DeviceMesh:
    """All ranks of the job as a `DeviceMesh` of a shape: the last dimension counts fastest. A call of all ranks, which joins the job first if this
    process has not.

    device_type: "cpu". mesh_shape: how many along each dimension; all of them together must be the ranks of the job. mesh_dim_names: a name for each
    (default: none).

    >>> from calque.distributed import init_device_mesh
    >>> init_device_mesh("cpu", 2)
    Traceback (most recent call last):
    calque.base.errors.ArgumentError: [init_device_mesh] expected mesh_shape as a tuple of whole numbers above 0, got 2
    """
    if not isinstance(mesh_shape, tuple | list) or not all(isinstance(n, int) and n > 0 for n in mesh_shape) or not mesh_shape:
        raise ArgumentError(f"[init_device_mesh] expected mesh_shape as a tuple of whole numbers above 0, got {shown(mesh_shape)}")
    if backend_override is not None:
        raise ArgumentError(f"[init_device_mesh] expected backend_override=None, got {shown(backend_override)}; leave it out: there is one back-end")
    if WORLD.group is None:
        init_process_group()
    size = world("init_device_mesh").size()
    if prod(mesh_shape) != size:
        raise ArgumentError(f"[init_device_mesh] expected a mesh of the {size} ranks of the job, got {list(mesh_shape)} of {prod(mesh_shape)}")
    return DeviceMesh(device_type, np.arange(size).reshape(mesh_shape), mesh_dim_names=mesh_dim_names)


def group_of_mesh(op: str, mesh: Any) -> Any:
    """The group of a mesh of one dimension; what is no mesh is given back."""
    if not isinstance(mesh, DeviceMesh):
        return mesh
    if mesh.ndim != 1:
        raise ArgumentError(f"[{op}] expected a mesh of one dimension, got one of shape {list(mesh.shape)}; take one by its name: mesh['name']")
    return mesh.get_group()
