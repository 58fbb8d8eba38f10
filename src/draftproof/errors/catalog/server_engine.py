"""What is said about errors of this part of the server."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP690",
        name="bad-draft-length",
        title="draft_length is neither a whole number nor auto.",
        meaning=(
            "`draft_length` says how many tokens the drafter proposes for this request in each step: a number fixes "
            'it, 0 switches drafting off, "auto" leaves it to the engine. It changes speed, never the output.'
        ),
        triggers=(
            "A negative number, a fraction, or True/False.",
            'Another word than "auto", such as "off" or "max".',
        ),
        fix='Pass a whole number from 0, "auto", or leave the field out.',
        before='SamplingParams(draft_length="off")',
        after="SamplingParams(draft_length=0)",
        prevention="Offer the choice between auto, none and a number, not a free text field.",
    ),
    Explanation(
        code="DP691",
        name="bad-prediction",
        title="The prediction is neither text nor token ids of this model.",
        meaning=(
            "`prediction` is the output that is expected, such as the file that the request asks to edit. Its tokens "
            "are proposed as drafts, so it must be a text or a list of ids from this model's vocabulary."
        ),
        triggers=(
            "A number, a dictionary, or a list of strings.",
            "Token ids made with another model's tokenizer.",
            "A text cut inside a surrogate pair by JavaScript's string functions.",
        ),
        fix="Pass the expected output as text; the engine tokenizes it.",
        before='SamplingParams(prediction=["def f():", "  return 1"])',
        after='SamplingParams(prediction="def f():\\n  return 1")',
        prevention="Keep predictions as text, next to the prompt they belong to.",
    ),
)
