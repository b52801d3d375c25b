"""As the series of lessons on torchrun ends: a small language model, a `Trainer` with snapshots that goes on at the epoch after the one it finds.
Run by torchrun; the arguments are the snapshot's path and the number of epochs."""

import io
import os
import sys
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import fsspec
import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: int = 2
    batch_size: int = 16
    data_loader_workers: int = 0
    grad_norm_clip: float = 1.0
    snapshot_path: str | None = None
    save_every: int = 1
    use_amp: bool = False


@dataclass
class Snapshot:
    model_state: "OrderedDict[str, torch.Tensor]"
    optimizer_state: dict[str, Any]
    finished_epoch: int


class CharDataset(Dataset):
    def __init__(self, block_size):
        data = ("the quick brown fox jumps over the lazy dog " * 12)[:500]
        chars = sorted(set(data))
        self.stoi = {ch: i for i, ch in enumerate(chars)}
        self.vocab_size, self.block_size, self.data = len(chars), block_size, data

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        encoded = [self.stoi[s] for s in self.data[idx : idx + self.block_size + 1]]
        return torch.tensor(encoded[:-1], dtype=torch.long), torch.tensor(encoded[1:], dtype=torch.long)


class Attention(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(block, block))

    def forward(self, x):
        n = x.size(1)
        return self.attn(x, x, x, attn_mask=self.mask[:n, :n] == 0, need_weights=False)[0]


class Block(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, block)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, width=16, heads=2, layers=2, block=8):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, width)
        self.pos_emb = nn.Parameter(torch.zeros(1, block, width))
        self.blocks = nn.Sequential(*[Block(width, heads, block) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.2)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.data.zero_()

    def forward(self, idx, targets=None):
        x = self.tok_emb(idx) + self.pos_emb[:, : idx.size(1), :]
        logits = self.head(self.ln_f(self.blocks(x)))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


class Trainer:
    def __init__(self, config, model, optimizer, train_dataset, test_dataset=None):
        self.config = config
        self.local_rank, self.global_rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
        self.train_loader = self._prepare_dataloader(train_dataset)
        self.test_loader = self._prepare_dataloader(test_dataset) if test_dataset else None
        self.epochs_run, self.model, self.optimizer = 0, model.to(torch.device("cpu")), optimizer
        self.scaler = torch.amp.GradScaler("cpu", enabled=False) if config.use_amp else None
        self._load_snapshot()
        self.model = DDP(self.model)

    def _prepare_dataloader(self, dataset):
        return DataLoader(
            dataset, batch_size=self.config.batch_size // int(os.environ["WORLD_SIZE"]), pin_memory=True, shuffle=False,
            num_workers=self.config.data_loader_workers, sampler=DistributedSampler(dataset, shuffle=False, drop_last=True),
        )  # fmt: skip

    def _load_snapshot(self):
        try:
            snapshot = fsspec.open(self.config.snapshot_path)
            with snapshot as f:
                snapshot_data = torch.load(f, map_location="cpu")
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch", file=sys.stderr)
            return
        snapshot = Snapshot(**snapshot_data)
        self.model.load_state_dict(snapshot.model_state)
        self.optimizer.load_state_dict(snapshot.optimizer_state)
        self.epochs_run = snapshot.finished_epoch

    def _run_batch(self, source, targets, train: bool = True):
        with torch.set_grad_enabled(train), torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=self.config.use_amp):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            if self.config.use_amp:
                self.scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
                self.optimizer.step()
        return loss

    def _run_epoch(self, epoch, loader, train=True):
        loader.sampler.set_epoch(epoch)
        for count, (source, targets) in enumerate(loader):
            loss = self._run_batch(source, targets, train)
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.SUM)
            if self.global_rank == 0 and count % 6 == 0:
                print(f"{epoch} {'train' if train else 'eval'} {mean.item() / int(os.environ['WORLD_SIZE']):.4f}", flush=True)

    def _save_snapshot(self, epoch):
        raw_model = self.model.module if hasattr(self.model, "module") else self.model
        snapshot = asdict(Snapshot(model_state=raw_model.state_dict(), optimizer_state=self.optimizer.state_dict(), finished_epoch=epoch))
        buffer = io.BytesIO()
        torch.save(snapshot, buffer)
        with fsspec.open(self.config.snapshot_path, "wb") as f:
            f.write(buffer.getvalue())

    def train(self):
        for epoch in range(self.epochs_run, self.config.max_epochs):
            epoch += 1
            self._run_epoch(epoch, self.train_loader, train=True)
            if self.local_rank == 0 and epoch % self.config.save_every == 0:
                self._save_snapshot(epoch)
            if self.test_loader:
                self._run_epoch(epoch, self.test_loader, train=False)


def create_optimizer(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95))


def main():
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    config = TrainerConfig(snapshot_path=sys.argv[1], max_epochs=int(sys.argv[2]))
    dataset = CharDataset(8)
    train_len = int(len(dataset) * 0.9)
    train_set, test_set = random_split(dataset, [train_len, len(dataset) - train_len], generator=torch.Generator().manual_seed(1))
    model = GPT(dataset.vocab_size)
    Trainer(config, model, create_optimizer(model), train_set, test_set).train()
    destroy_process_group()


if __name__ == "__main__":
    main()
