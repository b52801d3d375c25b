"""A run of a `Trainer`, on one process or on the ranks of a job: python trainer.py FOLDER EPOCHS ACCUMULATE SAMPLES BATCH [WORKERS [CUT [DROPOUT]]].
At the update CUT the last rank is asked to end. The first rank prints what came out."""

import json
import os
import signal
import sys

import calque
from calque import distributed as dist
from calque import nn
from calque.data import DataLoader, Dataset, TensorDataset
from calque.train import Trainer

calque.set_default_dtype(calque.float64)


class Noisy(Dataset):
    """Samples that are others each time."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.x[k] + 0.01 * calque.randn(5), self.y[k]


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean()


def main(folder, epochs, accumulate, count, batch, workers=0, cut=-1, dropout=0):
    calque.manual_seed(0)
    x = calque.randn(count, 5)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(dropout / 10), nn.Linear(8, 2))
    optimizer = calque.optim.AdamW(model.parameters(), lr=0.05)
    seen = []
    trainer = Trainer(
        model, optimizer, nn.functional.cross_entropy, folder=folder, accumulate=accumulate, max_norm=0.7, metrics={"accuracy": accuracy},
        save_every=1, quiet=True, scheduler=calque.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20), schedule="step", monitor="val_loss",
        on_epoch=lambda trainer, figures: seen.append(figures),
    )  # fmt: skip
    trainer.resume()
    update = trainer._update

    def cut_off(*given):
        if trainer.updates == cut and (not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*given)

    trainer._update = cut_off
    trainer.fit(DataLoader(Noisy(x, y), batch, shuffle=True, num_workers=workers), DataLoader(TensorDataset(x[:7], y[:7]), 3), epochs=epochs)
    assert trainer.checkpoints.best.exists() and seen
    if trainer.ranks.first:
        with open(os.path.join(folder, "losses.jsonl")) as file:
            losses = [json.loads(line)["loss"] for line in file]
        saved = calque.load(trainer.checkpoints.last)["model_state_dict"]
        assert list(saved) == list(model.state_dict()) and all(calque.equal(saved[name], value) for name, value in model.state_dict().items())
        weights = [number for p in model.parameters() for number in p.detach().flatten().tolist()]
        print(json.dumps({"losses": losses, "weights": weights, "figures": [number for row in trainer.history for number in row.values()]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
