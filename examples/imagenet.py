"""Training of a convolutional classifier on a folder of images, one folder per class, by several processes as programs for ImageNet do it.

Without --data a folder of small pictures is made. A checkpoint is written after every epoch; --resume goes on behind it.
"""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from common import draw_weights, options
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SHAPES = ("circle", "cross", "square", "stripes")


def draw(shape, rng):
    """(24, 24, 3) picture of a shape of any colour, place and size, with noise."""
    y, x = np.mgrid[:24, :24].astype(np.float64)
    x, y, size = x - rng.uniform(8, 16), y - rng.uniform(8, 16), rng.uniform(4, 8)
    inside = {
        "circle": x**2 + y**2 < size**2, "square": np.maximum(abs(x), abs(y)) < size, "stripes": (x + 24) // 3 % 2 == 0,
        "cross": (np.minimum(abs(x), abs(y)) < 2) & (np.maximum(abs(x), abs(y)) < size),
    }[shape]  # fmt: skip
    picture = np.where(inside[..., None], rng.uniform(120, 255, 3), rng.uniform(0, 100, 3)) + rng.normal(0, 12, (24, 24, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def make_folder(folder, seed):
    """`train` and `val`, with a folder for each class."""
    rng = np.random.default_rng(seed)
    for part, count in (("train", 32), ("val", 9)):
        for shape in SHAPES:
            place = Path(folder, part, shape)
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(draw(shape, rng)).save(place / f"{number:04d}.png")


class ImageFolder(Dataset):
    """(3, H, W) images and the numbers of their folders."""

    def __init__(self, folder):
        self.classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
        self.samples = sorted((path.name, label, str(path)) for label, name in enumerate(self.classes) for path in Path(folder, name).iterdir())

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        _, label, path = self.samples[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"), dtype=np.float32)
        return torch.from_numpy(pixels.transpose(2, 0, 1) / 127.5 - 1), label


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 12), nn.GroupNorm(4, 24)
        self.fc = nn.Linear(24 * 9, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 4)
        return self.fc(x.flatten(1))


def average(*numbers):
    """Sums over all processes, divided by the last of them."""
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return (total[:-1] / total[-1]).tolist()


def train(loader, model, optimizer, first, args):
    """One epoch, or what --steps leaves of it; returns the number of the last step."""
    model.train()
    step = first
    for images, target in loader:
        if step == args.steps:
            break
        step += 1
        output = model(images)
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        (mean,) = average(loss.item() * len(images), len(images))
        if args.rank == 0:
            print(f"step {step} loss {mean:.5f}", flush=True)
    return step


@torch.no_grad()
def validate(loader, model, args):
    model.eval()
    total = correct = count = 0
    for images, target in loader:
        output = model(images)
        total += F.cross_entropy(output, target, reduction="sum").item()
        correct += (output.argmax(1) == target).sum().item()
        count += len(target)
    loss, accuracy = average(total, correct, count)
    if args.rank == 0:
        print(f"validation loss {loss:.4f} accuracy {accuracy:.2f}", flush=True)
    return accuracy


def save_checkpoint(state, is_best, folder):
    torch.save(state, os.path.join(folder, "checkpoint.pth.tar"))
    if is_best:
        shutil.copyfile(os.path.join(folder, "checkpoint.pth.tar"), os.path.join(folder, "model_best.pth.tar"))


def main_worker(gpu, ngpus_per_node, args):
    """What each process does. `gpu` is its number on this machine; on a machine without GPUs it is that of a share of the cores."""
    args.rank = args.node * ngpus_per_node + gpu
    dist.init_process_group(backend=args.backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    train_set, val_set = ImageFolder(os.path.join(args.data, "train")), ImageFolder(os.path.join(args.data, "val"))
    model = draw_weights(Net(len(train_set.classes)), np.random.default_rng(args.seed))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    epoch, step, best = 0, 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
        epoch, step, best = checkpoint["epoch"], checkpoint["step"], checkpoint["best"]
        for name, part in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
            part.load_state_dict(checkpoint[name])
    # Files are in the order of their numbers, so that all classes take turns: another order would differ between libraries.
    sampler = DistributedSampler(train_set, num_replicas=args.world_size, rank=args.rank, shuffle=False)
    batch = args.batch_size // args.world_size
    loader = DataLoader(train_set, batch, sampler=sampler, num_workers=args.workers, drop_last=True)
    mine = DistributedSampler(val_set, num_replicas=args.world_size, rank=args.rank, shuffle=False)
    val_loader = DataLoader(val_set, batch, sampler=mine, num_workers=args.workers)
    while step < args.steps:
        sampler.set_epoch(epoch)
        step = train(loader, model, optimizer, step, args)
        scheduler.step()
        accuracy = validate(val_loader, model, args)
        epoch += 1
        if args.rank == 0 and args.checkpoints:
            state = {"epoch": epoch, "step": step, "model": model.state_dict(), "best": max(best, accuracy)}
            state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            save_checkpoint(state, accuracy > best, args.checkpoints)
        best = max(best, accuracy)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main():
    parser = options(__doc__, steps=24)
    parser.add_argument("--data", default="", help="a folder with train and val; made if it is not said")
    parser.add_argument("--batch-size", type=int, default=32, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=0, help="processes that load the data of one process")
    parser.add_argument("--processes", type=int, default=2, help="on this machine")
    parser.add_argument("--nodes", type=int, default=1, help="machines")
    parser.add_argument("--node", type=int, default=0, help="number of this machine")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--dist-url", default="", help="tcp://host:port of the first machine; a free port of this one if it is not said")
    parser.add_argument("--checkpoints", default="", help="the folder for checkpoint.pth.tar and model_best.pth.tar")
    parser.add_argument("--resume", default="", help="a checkpoint.pth.tar")
    args = parser.parse_args()
    ngpus_per_node = torch.cuda.device_count() if args.backend == "nccl" else args.processes
    args.world_size = ngpus_per_node * args.nodes
    args.dist_url = args.dist_url or f"tcp://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        if not args.data:
            args.data = os.path.join(folder, "images")
            make_folder(args.data, args.seed)
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))


if __name__ == "__main__":
    main()
