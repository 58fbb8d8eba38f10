"""The state of torch under which models run, whatever the caller has switched on."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import torch


def undisturbed(device: torch.device) -> AbstractContextManager[object]:
    """No gradients, and no autocast of the caller's, which would change dtypes under the models."""
    if not torch.is_autocast_enabled(
        device.type
    ):  # entering it for nothing takes as long as a small operator
        return torch.inference_mode()
    both = ExitStack()
    both.enter_context(torch.inference_mode())
    both.enter_context(torch.autocast(device.type, enabled=False))
    return both
