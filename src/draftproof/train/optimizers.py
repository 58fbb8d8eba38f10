"""AdamW, Muon for the matrices, and the rate over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.optim import Optimizer

from draftproof.errors import RequestError

KINDS = ("adamw", "muon")


@dataclass(frozen=True)
class OptimizerSettings:
    """How weights are moved.

    Attributes:
        kind: ``"adamw"``, or ``"muon"`` for Muon on the layers' matrices and `fc`, and AdamW on norms and biases.
        learning_rate: peak rate; one of Muon's updates is as large as one of AdamW's at the same rate.
        betas, epsilon: AdamW's.
        momentum: Muon's.
        newton_schulz_steps: Muon's iterations.
        weight_decay: decoupled, on matrices only.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    momentum: float = 0.95
    newton_schulz_steps: int = 5
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        problem = None
        if self.kind not in KINDS:
            problem = f"the optimiser is one of {', '.join(KINDS)}, got {self.kind!r}"
        elif not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            problem = f"the learning rate must be above 0, got {self.learning_rate}"
        elif not all(0 <= value < 1 for value in (*self.betas, self.momentum)):
            problem = f"betas and momentum lie in [0, 1), got {self.betas} and {self.momentum}"
        elif not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            problem = f"weight decay must be 0 or more, got {self.weight_decay}"
        elif self.newton_schulz_steps < 1:
            problem = f"Muon needs at least one iteration, got {self.newton_schulz_steps}"
        if problem is not None:
            raise RequestError("DP516", problem)


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """One optimiser for all parameters that are trained; its state is that of any torch optimiser.

    Every group has its peak rate under ``lr``; `scheduled` moves them all.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    others = [parameter for parameter in trained if parameter.ndim < 2]
    if settings.kind == "muon":
        return MuonAdamW(matrices, others, settings)
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=all(parameter.device.type in ("cpu", "cuda") for parameter in trained),
    )


def rate_factor(step: int, total: int, warmup: int, floor: float = 0.0) -> float:
    """Factor on the peak rate at `step` (from 0): linear warm-up over `warmup` steps, then a cosine down to `floor`.

    Raises:
        RequestError: DP516, the warm-up is no shorter than the run.
    """
    if not 0 <= warmup < max(total, 1):
        raise RequestError("DP516", f"a warm-up of {warmup} steps needs a longer run than {total} steps")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def scheduled(
    optimizer: Optimizer, total: int, warmup: int, floor: float = 0.0
) -> torch.optim.lr_scheduler.LambdaLR:
    """`rate_factor` on all of an optimiser's groups."""
    rate_factor(0, total, warmup, floor)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, total, warmup, floor))


class MuonAdamW(Optimizer):
    """Muon on matrices, AdamW on the rest, as one optimiser.

    Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks") orthogonalises the momentum by
    Newton-Schulz iterations. The update is scaled by ``0.2 * sqrt(max(rows, columns))``, so that its entries are as large as
    AdamW's (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2), and one rate serves both.

    Args:
        matrices: 2-dimensional parameters.
        others: all else.
        settings: rates and constants.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter], settings: OptimizerSettings
    ) -> None:
        self._settings = settings
        groups = [
            {"params": list(matrices), "muon": True, "weight_decay": settings.weight_decay},
            {"params": list(others), "muon": False, "weight_decay": 0.0},
        ]
        if any(parameter.ndim != 2 for parameter in groups[0]["params"]):  # type: ignore[attr-defined]
            raise RequestError(
                "DP516", "Muon works on whole matrices; use adamw where parameters are flattened"
            )
        super().__init__([group for group in groups if group["params"]], {"lr": settings.learning_rate})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            move = self._muon if group["muon"] else self._adamw
            move(moved, group["lr"], group["weight_decay"])
        return loss

    def _muon(self, parameters: list[nn.Parameter], rate: float, decay: float) -> None:
        settings = self._settings
        for same in _by_shape(parameters):
            gradients = []
            for parameter in same:
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                assert parameter.grad is not None
                momentum = state["momentum"].lerp_(parameter.grad, 1 - settings.momentum)
                gradients.append(parameter.grad.lerp(momentum, settings.momentum))  # Nesterov
            scale = 0.2 * max(same[0].shape) ** 0.5
            for parameter, update in zip(
                same, orthogonal(torch.stack(gradients), settings.newton_schulz_steps), strict=True
            ):
                parameter.mul_(1 - rate * decay).add_(update.to(parameter.dtype), alpha=-rate * scale)

    def _adamw(self, parameters: list[nn.Parameter], rate: float, decay: float) -> None:
        settings = self._settings
        first, second = settings.betas
        for parameter in parameters:
            state: dict[str, Any] = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            gradient = parameter.grad
            assert gradient is not None
            state["step"] += 1
            step = float(state["step"])
            state["mean"].lerp_(gradient, 1 - first)
            state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
            size = (state["square"] / (1 - second**step)).sqrt_().add_(settings.epsilon)
            parameter.mul_(1 - rate * decay).addcdiv_(state["mean"], size, value=-rate / (1 - first**step))


def _by_shape(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[torch.Size, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.shape, []).append(parameter)
    return list(groups.values())


def orthogonal(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest (semi-)orthogonal matrices to ``[n, rows, columns]``, roughly: singular values end near 1.

    A quintic Newton-Schulz iteration with the coefficients of Jordan et al. 2024, in bfloat16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        mixed = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, mixed, x, beta=a)
    return x.mT if tall else x
