"""State that is loaded follows its parameter: a checkpoint of one device goes on on another one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import calque
from calque import nn

pytestmark = pytest.mark.usefixtures("two_devices")
OTHER = "cpu:1"
OPTIMIZERS = {
    "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "Adagrad": {}, "Adadelta": {}, "Adamax": {}, "ASGD": {}, "NAdam": {},
    "RAdam": {}, "RMSprop": {"centered": True, "momentum": 0.5}, "Rprop": {}, "LBFGS": {}, "Adafactor": {}, "LAMB": {}, "LARS": {"momentum": 0.9},
    "Muon": {},
}  # fmt: skip


class Run:
    """Steps of training, which may go on elsewhere."""

    def __init__(self, name: str) -> None:
        self.name, self.losses = name, list[float]()
        self.x, self.y = calque.randn(6, 4), calque.randn(6, 3)
        self.model = nn.Linear(4, 3, bias=name != "Muon")
        self.optimizer = self.made()

    def made(self) -> Any:
        return getattr(calque.optim, self.name)(self.model.parameters(), lr=0.01, **OPTIMIZERS[self.name])

    def closure(self) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        return loss

    def steps(self, count: int) -> None:
        self.losses += [float(self.optimizer.step(self.closure)) for _ in range(count)]

    def resume(self, device: str) -> None:
        """As from a file that was read on the CPU, or wherever the state was."""
        state, weights = copy.deepcopy(self.optimizer.state_dict()), self.model.state_dict()
        self.model = nn.Linear(4, 3, bias=self.name != "Muon").to(device)
        self.model.load_state_dict(weights)
        self.optimizer, self.x, self.y = self.made(), self.x.to(device), self.y.to(device)
        self.optimizer.load_state_dict(state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_follows_its_parameter(name: str) -> None:
    calque.zeros(1).to(OTHER)
    runs = []
    for moves in (False, True):
        calque.manual_seed(0)
        run = Run(name)
        for device in (OTHER, "cpu"):
            run.steps(2)
            if moves:
                run.resume(device)
                held = [v for state in run.optimizer.state.values() for k, v in state.items() if calque.is_tensor(v) and v.ndim]
                assert {str(v.device) for v in held} <= {device}
        run.steps(2)
        runs.append(run)
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-6)
