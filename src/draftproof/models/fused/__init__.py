"""The fused executor: whole passes of mainstream decoders as one compiled call."""

from draftproof.models.fused.families import MODEL_TYPES, build_spec
from draftproof.models.fused.spec import FusedSpec
from draftproof.models.fused.target import FusedTarget
from draftproof.models.kernels.packing import Precision

__all__ = ["MODEL_TYPES", "FusedSpec", "FusedTarget", "Precision", "build_spec"]
