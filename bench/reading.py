"""Steps that read a value before they are over (the loss before its backward pass, a norm before the update), and some of which nobody reads
anything. `cliffs.py` runs them.

They repeat. What they ask is that what follows a read is as fast as what follows none.
"""

from __future__ import annotations

from typing import Any

from unrepeated import Case, Turn


def loss_first(T: Any) -> Turn:
    """A convolutional classifier whose loss is read before its backward pass."""
    nn = T.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 16 * 16, 10),
    )  # fmt: skip
    optimizer = T.optim.SGD(model.parameters(), lr=0.01)

    def turn(k: int) -> float:
        x, y = T.randn(16, 3, 32, 32), T.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        value = float(loss.item())
        loss.backward()
        optimizer.step()
        return value

    return turn


def gradient_penalty(T: Any) -> Turn:
    """A penalty on the norm of a gradient; the output and the penalty are read before the pass through both."""
    nn = T.nn
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
    model = nn.Sequential(first, nn.SiLU(), second, nn.SiLU(), nn.Flatten(), nn.Linear(8192, 1))
    optimizer = T.optim.Adam(model.parameters(), lr=1e-4)

    def turn(k: int) -> float:
        x = T.randn(8, 3, 32, 32).requires_grad_()
        optimizer.zero_grad()
        out = model(x).sum()
        out.item()
        (gradient,) = T.autograd.grad(out, x, create_graph=True)
        penalty = ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()
        value = float(penalty.item())
        (penalty + 0.1 * out).backward()
        optimizer.step()
        return value

    return turn


def clipped_lstm(T: Any) -> Turn:
    """An LSTM of which the mean output, the loss and the norm of the gradients are read."""
    nn = T.nn
    layer, head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = T.optim.Adam(parameters)

    def turn(k: int) -> float:
        x, y = T.randn(16, 30, 64), T.randint(0, 10, (16,))
        optimizer.zero_grad()
        out = layer(x)[0]
        float(out.mean())
        loss = nn.functional.cross_entropy(head(out[:, -1]), y)
        value = float(loss.item())
        loss.backward()
        float(nn.utils.clip_grad_norm_(parameters, 1.0))
        optimizer.step()
        return value

    return turn


def checked_encoder(T: Any) -> Turn:
    """A Transformer encoder on seven lengths that steps only where the loss is not tiny."""
    nn = T.nn
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = T.optim.AdamW(model.parameters())

    def turn(k: int) -> float:
        x = T.randn(4, 32 + k % 7, 128)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        value = float(loss.item())
        if value > 1e-9:
            loss.backward()
            optimizer.step()
        return value

    return turn


def adversaries(T: Any) -> Turn:
    """A generator and a discriminator, both losses read before their passes."""
    nn = T.nn
    softplus = nn.functional.softplus
    maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))
    judge = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    makes, judges = T.optim.Adam(maker.parameters()), T.optim.Adam(judge.parameters())

    def turn(k: int) -> float:
        real, made = T.randn(64, 784), maker(T.randn(64, 32))
        loss = (softplus(-judge(real)) + softplus(judge(made.detach()))).mean()
        loss.item()
        judges.zero_grad()
        loss.backward()
        judges.step()
        loss = softplus(-judge(made)).mean()
        value = float(loss.item())
        makes.zero_grad()
        loss.backward()
        makes.step()
        return value

    return turn


def unread(T: Any) -> Turn:
    """A hundred steps of a small network, of which nobody reads anything before the last has been written."""
    nn = T.nn
    model = nn.Sequential(nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))
    optimizer = T.optim.Adam(model.parameters(), lr=1e-3)
    x, y = T.randn(64, 384), T.randint(0, 10, (64,))

    def turn(k: int) -> float:
        for _ in range(100):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    return turn


CASES: dict[str, Case] = {
    "loss read first": Case(loss_first, 60, 60),
    "gradient penalty, read": Case(gradient_penalty, 60, 60),
    "clipped LSTM, read": Case(clipped_lstm, 60, 60),
    "encoder that looks at its loss": Case(checked_encoder, 60, 60),
    "adversaries, read": Case(adversaries, 60, 60),
    "100 steps, unread": Case(unread, 5, 15),
}
