"""Programs in many sizes are lowered by arithmetic to what lowering gives."""

from __future__ import annotations

from tests.fuzz.sizes import failure


def test_random_programs_in_random_sizes(seed: int) -> None:
    counts = {"arithmetic": 0, "lowered": 0, "linked": 0, "refused": 0}
    for number in range(seed, seed + 25):
        found = failure(number, counts)
        assert found is None, f"python -m tests.fuzz.sizes --count 1 --seed {number}: {found}"
    assert counts["arithmetic"] > 25 and counts["linked"] > 5 and not counts["refused"], counts
