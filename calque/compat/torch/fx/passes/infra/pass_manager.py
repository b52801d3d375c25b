"""`torch.fx.passes.infra.pass_manager`: several passes in an order that constraints allow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from calque.base.errors import ArgumentError
from calque.compat.torch.fx.passes.infra.pass_base import PassResult
from calque.fx import GraphModule

__all__ = ["PassManager", "pass_result_wrapper", "this_before_that_pass_constraint"]


def pass_result_wrapper(fn: Callable[..., Any]) -> Callable[..., PassResult | None]:
    """A pass of a function that changes a module and gives nothing, or a result of its own."""

    @functools.wraps(fn)
    def run(module: Any) -> PassResult:
        found = fn(module)
        return found if isinstance(found, PassResult) else PassResult(module if found is None else found, True)

    if not inspect.isfunction(fn):
        run.__name__ = type(fn).__name__
    return run


def this_before_that_pass_constraint(this: Any, that: Any) -> Callable[[Any, Any], bool]:
    """A constraint: `this` runs before `that`."""

    def depends(a: Any, b: Any) -> bool:
        return not (a == that and b == this)

    return depends


def _name(step: Any) -> str:
    return step.__name__ if inspect.isfunction(step) else type(step).__name__


class PassManager:
    """Runs `passes` in an order that all `constraints` allow, until none changes the module or they have run `steps` times."""

    def __init__(
        self, passes: list[Any] | None = None, constraints: list[Any] | None = None, steps: int | None = None,
        run_checks_after_each_pass: bool = False, suppress_check_failures: bool = False,
    ) -> None:  # fmt: skip
        self.passes, self.constraints, self.steps = passes or [], constraints or [], steps or 1
        self.run_checks_after_each_pass, self.suppress_check_failures = run_checks_after_each_pass, suppress_check_failures
        self._validated = False

    def add_pass(self, _pass: Any) -> None:
        """One more pass."""
        self.passes.append(_pass)
        self._validated = False

    def add_constraint(self, constraint: Any) -> None:
        """One more constraint."""
        self.constraints.append(constraint)
        self._validated = False

    def add_checks(self, check: Callable[[Any], None]) -> None:
        """A function that raises if a module is not as it should be."""
        if len(inspect.signature(check).parameters) != 1:
            raise TypeError("[PassManager] PassManager check function should only take in one variable, a module")
        self.__dict__["check"] = check

    def check(self, module: Any) -> None:
        """What is asked of the module before the passes, and behind each if that was wished."""

    def validate_constraints(self) -> None:
        """Raise if the order of the passes breaks a constraint."""
        if self._validated:
            return
        for constraint in self.constraints:
            for k, first in enumerate(self.passes):
                for second in self.passes[k + 1 :]:
                    if not constraint(first, second):
                        order = f"{_name(first)} before {_name(second)}"
                        raise RuntimeError(f"[PassManager] expected passes in an order that the constraints allow, got {order}")
        self._validated = True

    def solve_constraints(self) -> None:
        """Put the passes into an order that the constraints allow."""
        left, found = list(self.passes), []
        while left:
            free = next((a for a in left if all(c(a, b) for c in self.constraints for b in left if b is not a)), None)
            if free is None:
                raise RuntimeError(f"[PassManager] Circular dependency detected among the following passes: {[_name(p) for p in left]}")
            left.remove(free)
            found.append(free)
        self.passes, self._validated = found, True

    def __call__(self, module: Any) -> PassResult:
        if not self._validated:
            self.solve_constraints()
        self.check(module)
        ever = False
        for _ in range(self.steps):
            modified = False
            for k, step in enumerate(self.passes):
                try:
                    found = step(module)
                    if not hasattr(found, "graph_module"):
                        raise TypeError(f"The result of the pass {_name(step)} should be type PassResult. Please wrap it with pass_result_wrapper()")
                    module, modified = found.graph_module, modified or found.modified
                    if isinstance(module, GraphModule):
                        module.recompile()
                    if self.run_checks_after_each_pass:
                        self.check(module)
                except Exception as error:
                    before = [_name(p) for p in self.passes[:k]]
                    raise ArgumentError(
                        f"[PassManager] An error occurred when running the '{_name(step)}' pass after the following passes: {before}"
                    ) from error
            ever = ever or modified
            if not modified:
                break
        return PassResult(module, ever)
