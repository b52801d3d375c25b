"""Exports where small operations are computed as they are written, as users run them."""

from __future__ import annotations

import copy

import pytest

import calque
from calque.base.errors import OutOfRangeError
from tests.exported.models import CASES, apart

pytestmark = pytest.mark.usefixtures("as_users")


def test_exports_run_as_users_run_them() -> None:
    for case in CASES[:-1]:
        calque.manual_seed(0)
        model = case.make().train(case.train)
        exported = calque.export(model, case.inputs(*case.example), case.dynamic)
        for sizes in [case.example, *case.sizes]:
            given = case.inputs(*sizes)
            for _ in range(2):
                wanted = copy.deepcopy(model)(*given)  # running statistics move on at every call
                assert apart(exported(*given), wanted) < 2e-5, case.name
                model.load_state_dict(exported.state_dict())


def test_a_wrong_index_is_told_at_its_line() -> None:
    case = next(c for c in CASES if c.name == "gpt")
    exported = calque.export(case.make().eval(), case.inputs(*case.example), case.dynamic)
    (tokens,) = case.inputs(2, 9)
    for _ in range(2):
        exported(tokens).sum().item()
        with pytest.raises(OutOfRangeError, match=r"models\.py:\d+"):
            exported(tokens + 100).sum().item()  # errors of what is recorded come when it runs
