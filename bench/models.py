"""The six training steps, written once against PyTorch's names: `torch` below is either PyTorch or Calque.

Every builder returns (model, optimizer, batch, loss function); `make_step` turns that into one training step. Sizes follow issue 2:
MLP 784-512-512-10; LeNet-like CNN on 28x28; ResNet-18 on 32x32 and on 224x224; 2-layer LSTM language model with 10,000 words; GPT with 10.7 M
parameters (6 layers, 384 wide, context 256).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Built = tuple[Any, Any, tuple[Any, ...], Callable[..., Any]]


def mlp(torch: Any, batch: int = 128) -> Built:
    """MLP 784-512-512-10 with Adam."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((batch, 784)).astype(np.float32))
    y = torch.tensor(rng.integers(0, 10, batch))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, optimizer, (x, y), lambda x, y: nn.functional.cross_entropy(model(x), y)


def lenet(torch: Any, batch: int = 64) -> Built:
    """LeNet-like CNN on 28x28 with SGD and momentum."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip
    rng = np.random.default_rng(2)
    x = torch.tensor(rng.standard_normal((batch, 1, 28, 28)).astype(np.float32))
    y = torch.tensor(rng.integers(0, 10, batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, (x, y), lambda x, y: nn.functional.cross_entropy(model(x), y)


def resnet18(torch: Any, size: int, batch: int) -> Built:
    """ResNet-18 (He et al. 2015); 3x3 stem without pooling for 32x32 images, SGD with momentum and weight decay."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outside)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outside)
            self.relu = nn.ReLU()
            same = stride == 1 and inside == outside
            self.downsample = None if same else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            identity = x if self.downsample is None else self.downsample(x)
            return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + identity)

    class ResNet18(nn.Module):  # type: ignore[misc]
        def __init__(self, classes: int) -> None:
            super().__init__()
            small = size <= 64
            self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU()
            self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
            layers = []
            inside = 64
            for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                layers.append(nn.Sequential(Block(inside, width, stride), Block(width, width, 1)))
                inside = width
            self.layer1, self.layer2, self.layer3, self.layer4 = layers
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(512, classes)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    model = ResNet18(10 if size <= 64 else 1000)
    rng = np.random.default_rng(3)
    x = torch.tensor(rng.standard_normal((batch, 3, size, size)).astype(np.float32))
    y = torch.tensor(rng.integers(0, 10, batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, (x, y), lambda x, y: nn.functional.cross_entropy(model(x), y)


def lstm(torch: Any, batch: int = 20, length: int = 35, words: int = 10_000, width: int = 200) -> Built:
    """2-layer LSTM language model (Zaremba et al. 2014, the small setting without dropout), SGD with gradient clipping."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn, self.head = nn.Embedding(words, width), nn.LSTM(width, width, 2), nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            hidden, _ = self.rnn(self.embedding(tokens))
            return self.head(hidden)

    model = Model()
    rng = np.random.default_rng(4)
    tokens = torch.tensor(rng.integers(0, words, (length + 1, batch)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def loss(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(model(x).view(-1, words), y.reshape(-1))

    return model, optimizer, (tokens[:-1].clone(), tokens[1:].clone()), loss


def gpt(torch: Any, batch: int = 8, length: int = 256, layers: int = 6, heads: int = 6, width: int = 384, words: int = 65) -> Built:
    """GPT (Radford et al. 2019) with 10.7 M parameters at the default sizes, AdamW."""
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            B, T, C = x.shape
            q, k, v = (part.view(B, T, heads, C // heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.attention, self.ln2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.ln1(x))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    model = GPT()
    rng = np.random.default_rng(5)
    tokens = torch.tensor(rng.integers(0, words, (batch, length + 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def loss(x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x).view(-1, words), y.reshape(-1))

    return model, optimizer, (tokens[:, :-1].clone(), tokens[:, 1:].clone()), loss


WORKLOADS: dict[str, Callable[[Any], Built]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18-32": lambda torch: resnet18(torch, 32, 32),
    "resnet18-224": lambda torch: resnet18(torch, 224, 8),
    "lstm": lstm,
    "gpt": gpt,
}

SMALL: dict[str, Callable[[Any], Built]] = {  # the same programs at sizes that a test suite can afford
    "mlp": lambda torch: mlp(torch, 32),
    "lenet": lambda torch: lenet(torch, 8),
    "resnet18-32": lambda torch: resnet18(torch, 32, 4),
    "resnet18-224": lambda torch: resnet18(torch, 96, 2),
    "lstm": lambda torch: lstm(torch, 4, 8, 500, 48),
    "gpt": lambda torch: gpt(torch, 2, 32, 2, 2, 64, 65),
}


def make_step(built: Built) -> Callable[[], Any]:
    """One training step: zero_grad, forward, loss, backward, update. Returns the loss tensor (unread)."""
    _, optimizer, batch, loss_function = built

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_function(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def copy_weights(source: Any, target: Any, torch: Any) -> None:
    """Give `target` (of framework `torch`) the weights of `source` (of any framework)."""
    target.load_state_dict({k: torch.tensor(np.array(v.detach().numpy())) for k, v in source.state_dict().items()})


