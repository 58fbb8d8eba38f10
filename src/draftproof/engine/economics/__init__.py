"""How far to draft: acceptance estimated online, costs of this machine, and the choice that pays most."""

from draftproof.engine.economics.acceptance import DraftOutcome, RequestAcceptance
from draftproof.engine.economics.costs import CostTable, StepCost
from draftproof.engine.economics.curve import CostCurve
from draftproof.engine.economics.economist import DraftWish, Economist
from draftproof.engine.economics.measure import measure_costs
from draftproof.engine.economics.mode import DraftMode
from draftproof.engine.economics.store import CostKey, load_costs, save_costs

__all__ = [
    "CostCurve",
    "CostKey",
    "CostTable",
    "DraftMode",
    "DraftOutcome",
    "DraftWish",
    "Economist",
    "RequestAcceptance",
    "StepCost",
    "load_costs",
    "measure_costs",
    "save_costs",
]
