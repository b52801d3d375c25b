"""Einstein summation by permutation, reshaping and batched matrix products; operands are contracted from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product
from typing import Any

from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.functional.arithmetic import mul
from calque.functional.common import is_tensor, prim
from calque.functional.declared import public
from calque.functional.formats import contiguous
from calque.functional.linalg import matmul, require_tensors
from calque.functional.precision import lower_precision
from calque.functional.views import permute, reshape
from calque.functional.windows import diagonal
from calque.tensor import Tensor

Labels = list[Any]  # a letter, or ("...", k) for the k-th ellipsis dim counted from the right


def _fail(equation: str, reason: str) -> ArgumentError:
    return ArgumentError(f"[einsum] {reason}, got equation {shown(equation)}; write it like 'ij,jk->ik'")


def _term(text: str, equation: str) -> Labels:
    """Labels of one operand; an ellipsis becomes the single label '...'."""
    labels: Labels = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter == ".":
            if text[position : position + 3] != "..." or "..." in labels:
                raise _fail(equation, "expected at most one ellipsis '...' per operand")
            labels.append("...")
            position += 3
            continue
        if not letter.isalpha() or not letter.isascii():
            raise _fail(equation, f"invalid subscript {letter!r}: subscripts must be in [a-zA-Z]")
        labels.append(letter)
        position += 1
    return labels


def _parse(equation: str) -> tuple[list[Labels], Labels | None]:
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    if "-" in left or ">" in left or "->" in right:
        raise _fail(equation, "expected at most one '->'")
    inputs = [_term(part, equation) for part in left.split(",")]
    return inputs, _term(right, equation) if arrow else None


def _spread(labels: Labels, ndim: int, equation: str, number: int) -> Labels:
    """Replace '...' by one label per dim it stands for."""
    named = len([x for x in labels if x != "..."])
    if "..." not in labels:
        if named != ndim:
            raise ShapeError(
                "[einsum] the number of subscripts in the equation does not match the number of dimensions for operand "
                f"{number}: {named} "
                f"subscripts, {ndim} dimensions, and no ellipsis was given (equation {shown(equation)})"
            )
        return labels
    if named > ndim:
        raise ShapeError(
            f"[einsum] operand {number} has {ndim} dimensions, fewer than its {named} subscripts (equation {shown(equation)})"
        )
    covered = ndim - named
    at = labels.index("...")
    return labels[:at] + [("...", covered - k) for k in range(covered)] + labels[at + 1 :]


def _order(label: Any) -> Any:
    return (0, -label[1], "") if isinstance(label, tuple) else (1, 0, label)


def _output(inputs: list[Labels], given: Labels | None, equation: str) -> Labels:
    """Output labels with the ellipsis spread; without an arrow: the ellipsis, then labels that occur once, in alphabetical
    order."""
    seen = {label for labels in inputs for label in labels}
    dots = sorted((x for x in seen if isinstance(x, tuple)), key=_order)
    if given is None:
        counts = [label for labels in inputs for label in labels if not isinstance(label, tuple)]
        return dots + sorted(x for x in set(counts) if counts.count(x) == 1)
    result: Labels = []
    for label in given:
        if label == "...":
            result += dots
        elif label in result:
            raise _fail(equation, f"output subscript {label} appears more than once in the output")
        elif label not in seen:
            raise _fail(equation, f"output subscript {label} does not appear in the equation for any input operand")
        else:
            result.append(label)
    return result


def _sizes(operands: Sequence[Tensor], inputs: list[Labels], equation: str) -> dict[Any, int]:
    sizes: dict[Any, int] = {}
    for number, (x, labels) in enumerate(zip(operands, inputs, strict=True)):
        for d, label in enumerate(labels):
            extent = x._layout.shape[d]
            known = sizes.get(label, 1)
            if extent != 1 and known not in (1, extent):
                raise ShapeError(
                    f"[einsum] subscript {label if isinstance(label, str) else '...'} has size {extent} for operand {number} of "
                    "shape "
                    f"{tuple(x._layout.shape)} which does not broadcast with previously seen size {known} (equation {shown(equation)})"
                )
            sizes[label] = known if extent == 1 else extent
    return sizes


def _simplify(x: Tensor, labels: Labels, sizes: dict[Any, int]) -> tuple[Tensor, Labels]:
    """Take diagonals of repeated labels, and drop dims of size 1 that stand for a larger size."""
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        if x._layout.shape[first] != x._layout.shape[second]:
            raise ShapeError(
                f"[einsum] subscript {label} is repeated but the sizes don't match: {x._layout.shape[first]} and "
                f"{x._layout.shape[second]}"
            )
        x = diagonal(x, 0, first, second)
        labels = [w for d, w in enumerate(labels) if d not in (first, second)] + [label]
    kept = [d for d, label in enumerate(labels) if not (x._layout.shape[d] == 1 and sizes[label] != 1)]
    if len(kept) < len(labels):
        x = reshape(x, tuple(x._layout.shape[d] for d in kept))
        labels = [labels[d] for d in kept]
    return x, labels


def _place(label: Any, output: Labels) -> int:
    return output.index(label) if label in output else len(output)


def _sum_out(x: Tensor, labels: Labels, keep: set[Any], output: Labels) -> tuple[Tensor, Labels]:
    """Sums over all labels but some, dense in the order of the output."""
    dims = tuple(d for d, label in enumerate(labels) if label not in keep)
    if not dims:
        return x, labels
    x, labels = prim("sum", x, dims, False), [label for label in labels if label in keep]
    order = sorted(range(len(labels)), key=lambda d: _place(labels[d], output))
    if order != sorted(order):
        x, labels = contiguous(permute(x, order)), [labels[d] for d in order]
    return x, labels


def _arrange(x: Tensor, labels: Labels, groups: list[Labels], sizes: dict[Any, int]) -> Tensor:
    """x with its dims in the order of the groups, each group flattened into one dim."""
    order = [labels.index(label) for group in groups for label in group]
    if order != sorted(order):
        x = permute(x, order)
    return reshape(x, tuple(product(sizes[label] for label in group) for group in groups))


def _pair(a: Tensor, left: Labels, b: Tensor, right: Labels, keep: set[Any], output: Labels, sizes: dict[Any, int]) -> tuple[Tensor, Labels]:
    """Contract two operands over the labels that both have and nobody needs later. As in PyTorch the dims of each group come in the order of the
    output, and the operands change places where the result is dense in that order then."""
    a, left = _sum_out(a, left, keep | set(right), output)
    b, right = _sum_out(b, right, keep | set(left), output)

    def place(label: Any) -> int:
        return _place(label, output)

    batch = sorted([label for label in left if label in right and label in keep], key=place)
    inner = [label for label in left if label in right and label not in keep]
    rows = sorted([label for label in left if label not in right], key=place)
    columns = sorted([label for label in right if label not in left], key=place)
    if rows and columns and batch + columns + rows == output:
        a, left, rows, b, right, columns = b, right, columns, a, left, rows
    labels = batch + rows + columns
    if not inner:
        labels.sort(key=place)
        x, y = (_arrange(x, own, [[label] if label in own else [] for label in labels], sizes) for x, own in ((a, left), (b, right)))
        return mul(x, y), labels
    x = _arrange(a, left, [batch, rows, inner] if batch else [rows, inner], sizes)
    y = _arrange(b, right, [batch, inner, columns] if batch else [inner, columns], sizes)
    return reshape(matmul(x, y), tuple(sizes[label] for label in labels)), labels


def _from_lists(arguments: Sequence[Any]) -> tuple[str, list[Tensor]]:
    """The sublist form `einsum(x, [0, 1], y, [1, 2], [0, 2])` as an equation."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in the order of the numbers, which is that of implied results

    def word(numbers: Any) -> str:
        for n in numbers:
            if n is not Ellipsis and not 0 <= n < len(letters):
                raise ArgumentError(f"[einsum] expected subscripts within the valid range [0, {len(letters)}), got {n}; number the dims from 0")
        return "".join("..." if n is Ellipsis else letters[n] for n in numbers)

    operands = list(arguments[0 : len(arguments) // 2 * 2 : 2])
    equation = ",".join(word(n) for n in arguments[1::2])
    if len(arguments) % 2:
        equation += "->" + word(arguments[-1])
    return equation, operands


@public(method=False, steps=True)
@lower_precision
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sum of products over named dims.

    equation: subscripts of every operand, then optionally `->` and those of the result. `...` stands for any number of broadcast
    dims, a label
    repeated within an operand takes its diagonal, dims of size 1 broadcast.

    >>> import calque
    >>> a, b = calque.tensor([[1.0, 2.0], [3.0, 4.0]]), calque.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> calque.einsum("ij,jk->ik", a, b)
    tensor([[1., 4.],
            [3., 8.]])
    >>> calque.einsum("ii", a)
    tensor(5.)
    """
    if not isinstance(equation, str):
        if not is_tensor(equation):
            raise DTypeError(f"[einsum] expected the equation as a str (or operands and lists of labels), got {type_name(equation)}")
        for labels in operands[::2]:
            if not isinstance(labels, (tuple, list)):
                raise DTypeError(f"[einsum] expected a list of labels after every operand, got {type_name(labels)}; give the equation as a str")
        equation, listed = _from_lists((equation, *operands))
        operands = tuple(listed)
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not operands:
        raise _fail(equation, "expected at least one operand")
    require_tensors("einsum", *operands)
    inputs, given = _parse(equation)
    if len(inputs) != len(operands):
        raise _fail(
            equation,
            f"more operands were provided than specified in the equation or fewer: {len(operands)} operands, {len(inputs)} terms",
        )
    spread = [_spread(w, x._layout.ndim, equation, n) for n, (w, x) in enumerate(zip(inputs, operands, strict=True))]
    output = _output(spread, given, equation)
    sizes = _sizes(operands, spread, equation)
    parts = [_simplify(x, labels, sizes) for x, labels in zip(operands, spread, strict=True)]
    x, labels = parts[0]
    for number, (y, right) in enumerate(parts[1:], 2):
        later = set(output).union(*(set(w) for _, w in parts[number:]))
        x, labels = _pair(x, labels, y, right, later, output, sizes)
    x, labels = _sum_out(x, labels, set(output), output)
    order = [labels.index(label) for label in output]
    return permute(x, order) if order != sorted(order) else x
