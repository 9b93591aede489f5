"""Several processes as one, under `torchrun`: each takes a part of every step, on GPUs or CPUs.

The networks are small, so gradients travel in one message after the backward pass, and batch norms add up
their statistics over all processes: N processes take the very steps of one with N times the batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError

_PATIENCE = timedelta(days=1)  # while the first process prepares data or validates, the others wait


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, for the time of a training; alone, do nothing."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def choose_device(wanted: str) -> torch.device:
    """The GPU of this process, or the CPU."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("device is cuda, and PyTorch finds no GPU: set it to auto or cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def copy_first(module: nn.Module) -> None:
    """Give all processes the weights and statistics of the first one."""
    if world_size() == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, 0)


def first_number(value: float, device: torch.device) -> float:
    """The number that the first process has: clocks differ, and all must stop at the same step."""
    if world_size() == 1:
        return value
    number = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(number, 0)
    return float(number)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients by their mean over all processes.

    A parameter that no loss reads has none on any process, and keeps none: an optimiser would decay it.
    """
    if world_size() == 1:
        return
    moved = [p for p in parameters if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in moved if p.grad is not None])
    dist.all_reduce(flat)
    flat /= world_size()
    for parameter, mean in zip(moved, flat.split([p.numel() for p in moved]), strict=True):
        parameter.grad = mean.view_as(parameter)


def mean_over_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    if world_size() == 1:
        return values
    stacked = torch.stack([value.detach().float() for value in values.values()])
    dist.all_reduce(stacked)
    return dict(zip(values, stacked / world_size(), strict=True))


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch norm over the points of all processes, in one or two dimensions; PyTorch's is GPU only."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        points = [0, *range(2, input.dim())]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        # Grids differ in size, so processes differ in their number of points.
        count = torch.tensor([input.numel() / input.shape[1]], device=input.device)
        dist.all_reduce(count)
        mean = dist_nn.all_reduce(input.float().sum(points)) / count
        centred = input - mean.view(shape)
        variance = dist_nn.all_reduce(centred.square().sum(points)) / count
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum or 0.0)
                self.running_var.lerp_(variance * count / (count - 1), self.momentum or 0.0)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked += 1
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)


def synchronise_batch_norms(module: nn.Module) -> None:
    """Give a network batch norms over all processes, in place, with the same names and values."""
    if world_size() == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
            norm = SyncBatchNorm(child.num_features, child.eps, child.momentum, child.affine)
            norm.load_state_dict(child.state_dict())
            for own, old in zip(norm.parameters(), child.parameters(), strict=True):
                own.requires_grad_(old.requires_grad)  # what is frozen stays frozen
            setattr(module, name, norm.to(next(child.buffers()).device))
        else:
            synchronise_batch_norms(child)
