"""Train a drafter for a target: answers of the target, features of them, the model, the run."""

from draftproof.train.bars import Progress, StageProgress, showing_stage
from draftproof.train.features import Features, FeatureSource, Sample, open_features
from draftproof.train.leaks import HeldOut, refuse_leaked_responses, refuse_leaks
from draftproof.train.regenerate import ResponsePlan, Summary, about_of, regenerate
from draftproof.train.responses import (
    Response,
    ResponseFile,
    check_vocabulary,
    in_order,
    read_responses,
    within_budget,
)

__all__ = [
    "FeatureSource",
    "Features",
    "HeldOut",
    "Progress",
    "Response",
    "ResponseFile",
    "ResponsePlan",
    "Sample",
    "StageProgress",
    "Summary",
    "about_of",
    "check_vocabulary",
    "in_order",
    "open_features",
    "read_responses",
    "refuse_leaked_responses",
    "refuse_leaks",
    "regenerate",
    "showing_stage",
    "within_budget",
]
