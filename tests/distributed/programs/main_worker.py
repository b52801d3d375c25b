"""The usual program for classification on many processes, written for PyTorch: arguments for rank and address, SyncBatchNorm, samplers, figures
summed over ranks, the rest of the validation set by itself, `record`. test_training.py runs it in one process, by `calque launch` and by torchrun."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.utils.data
import torch.utils.data.distributed
from torch.distributed.elastic.multiprocessing.errors import record
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum = self.count = self.avg = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=torch.device("cpu"))
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target.view(1, -1).expand_as(predicted.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def network():
    torch.manual_seed(5)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


def run_epoch(loader, model, criterion, optimizer=None, meters=None):
    losses, top1 = meters or (AverageMeter(), AverageMeter())
    for images, target in loader:
        output = model(images.to("cpu", non_blocking=True))
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target, topk=(1, 5))[0].item(), images.size(0))
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses, top1


def main_worker(args):
    if args.distributed:
        dist.init_process_group(backend="gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    model, batch = network(), args.batch_size // args.world_size
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler, criterion = StepLR(optimizer, step_size=2, gamma=0.1), nn.CrossEntropyLoss()
    g = torch.Generator().manual_seed(3)
    train_set, val_set = (TensorDataset(torch.randn(n, 3, 8, 8, generator=g), torch.randint(0, 10, (n,), generator=g)) for n in (64, 37))
    train_sampler = val_sampler = None
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_set, shuffle=False)
        val_sampler = torch.utils.data.distributed.DistributedSampler(val_set, shuffle=False, drop_last=True)
    train_loader, val_loader = (DataLoader(d, batch, sampler=s, pin_memory=True) for d, s in ((train_set, train_sampler), (val_set, val_sampler)))
    for epoch in range(3):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        model.train()
        losses, _ = run_epoch(train_loader, model, criterion, optimizer)
        model.eval()
        with torch.no_grad():
            meters = run_epoch(val_loader, model, criterion)
        if args.distributed:
            for meter in (losses, *meters):
                meter.all_reduce()
            done = len(val_loader.sampler) * args.world_size
            if done < len(val_set):
                with torch.no_grad():
                    run_epoch(DataLoader(Subset(val_set, range(done, len(val_set))), batch), model, criterion, meters=meters)
        scheduler.step()
        if args.rank == 0:
            print(f"{losses.avg:.5f} {meters[0].avg:.5f} {meters[1].avg:.3f} {scheduler.get_last_lr()[0]:.3f}", flush=True)
    if args.distributed:
        dist.destroy_process_group()


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-url", default="env://")
    parser.add_argument("-b", "--batch-size", default=16, type=int)
    args = parser.parse_args()
    args.world_size, args.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    args.distributed = args.world_size > 1
    main_worker(args)


if __name__ == "__main__":
    main()
