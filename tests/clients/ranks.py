"""Training by libraries that were written for PyTorch's processes, an argument says which; test_ranks.py runs it in one process and in two. It prints
the mean losses of all ranks."""

import os
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

COUNT = int(os.environ.get("WORLD_SIZE", 1))
torch.set_default_dtype(torch.float64)
DATA = TensorDataset(torch.sin(torch.arange(240.0).reshape(40, 6)), (torch.cos(torch.arange(40.0)) > 0).long())


def network():
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel()).double() * (k + 1)).reshape(p.shape) / 2)
    return net


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5 * COUNT, 0.5)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, DataLoader(DATA, batch_size=8 // COUNT), schedule)
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            mean = accelerator.gather(loss.detach().reshape(1)).mean()
            if accelerator.is_main_process:
                print(f"{mean.item():.11f}", flush=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(f"{sum(p.sum().item() for p in accelerator.unwrap_model(net).parameters()):.11f}")
    accelerator.end_training()


def with_lightning():
    import lightning as L

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, number):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            mean = self.all_gather(loss.detach()).mean()
            if self.global_rank == 0:
                print(f"{mean.item():.11f}", flush=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    trainer = L.Trainer(
        accelerator="cpu", devices=COUNT, strategy="ddp" if COUNT > 1 else "auto", max_epochs=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    sampler = DistributedSampler(DATA, COUNT, int(os.environ["RANK"]), shuffle=False) if COUNT > 1 else None
    trainer.fit(Lit(), DataLoader(DATA, batch_size=8 // COUNT, sampler=sampler))


warnings.filterwarnings("ignore")
{"accelerate": with_accelerate, "lightning": with_lightning}[sys.argv[1]]()
