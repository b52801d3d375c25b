"""What it costs to add up the gradients of n ranks: links, and the three ways that are usual.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), for the costs of rings and
trees; data sheets for bandwidths: IEEE 802.3ae, PCI Express 3.0 (0.985 GB/s per lane), NVLink 4 of an H100 (18 links of 25 GB/s each way),
InfiniBand NDR (400 Gb/s). Latencies are of one small message between two programs, in round numbers.
"""

from __future__ import annotations

from math import ceil, inf, log2

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError
from calque.base.text import shown


@dataclass(frozen=True)
class Link:
    """What joins the ranks. bandwidth: bytes per second, each way, of a rank (of a machine, if several share it). latency: seconds, of a message."""

    name: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth < inf and 0 <= self.latency < inf):
            got = f"{shown(self.bandwidth)} and {shown(self.latency)}"
            raise ArgumentError(f"[Link] expected a bandwidth above 0 and a latency of 0 or more, got {got}")


LINKS = {
    link.name: link
    for link in (
        Link("10 GbE", 1.25e9, 30e-6), Link("PCIe 3.0 x16", 15.75e9, 5e-6), Link("4 x PCIe 3.0 x16", 63e9, 5e-6), Link("NVLink 4", 450e9, 3e-6),
        Link("InfiniBand NDR", 50e9, 2e-6),
    )
}  # fmt: skip
SCHEMES = ("ring", "tree", "two-level")


def link_of(what: str, link: Link | str) -> Link:
    """A link, or one of `LINKS` by name."""
    found = LINKS.get(link) if isinstance(link, str) else link
    if not isinstance(found, Link):
        raise ArgumentError(f"[{what}] expected a Link or one of {', '.join(map(repr, LINKS))}, got {shown(link)}")
    return found


def ring(ranks: int, nbytes: float, link: Link) -> float:
    """Seconds of a ring: every rank sends 2 (n - 1) parts of an nth."""
    return 2 * (ranks - 1) * (nbytes / ranks / link.bandwidth + link.latency)


def tree(ranks: int, nbytes: float, link: Link) -> float:
    """Seconds of a sum up a binary tree and its way back down, everything in each step."""
    return 2 * ceil(log2(ranks)) * (nbytes / link.bandwidth + link.latency)


def two_level(ranks: int, nbytes: float, link: Link, inside: Link, per_machine: int) -> float:
    """Seconds of a ring inside each machine, and of one between machines that carries every byte once for all ranks of a machine."""
    near = min(ranks, per_machine)
    return ring(near, nbytes, inside) + ring(ceil(ranks / near), nbytes, link)


def seconds(scheme: str, ranks: int, nbytes: float, link: Link, inside: Link, per_machine: int) -> float:
    """Any of them; in a flat ring or tree every message goes over `link`."""
    if scheme not in SCHEMES:
        raise ArgumentError(f"[plan_scaling] expected a scheme of {', '.join(SCHEMES)}, got {shown(scheme)}")
    if ranks <= 1:
        return 0.0
    if scheme == "two-level":
        return two_level(ranks, nbytes, link, inside, per_machine)
    return ring(ranks, nbytes, link) if scheme == "ring" else tree(ranks, nbytes, link)
