"""Explanations of DP500 to DP509: what a drafter is trained on."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP500",
        name="bad-training-prompts",
        title="A file with prompts for training cannot be used.",
        meaning=(
            "`draftproof train --prompts` and `--held-out` take JSON Lines files: one JSON object a line, with a text under "
            "`prompt`, a list of texts under `turns` or a conversation under `messages`, and the kind of text under `group`. A "
            "file is missing or has no prompt in it, or a line is something else."
        ),
        triggers=(
            "A misspelt path.",
            "The text under another name, such as `text` or `question`.",
            "Every prompt of the file is held out for measuring, or too long for the target's context.",
        ),
        fix="Mend the line that the message names; an answer that stands beside the question is of no use and may stay.",
        before='{"question": "What is 17 times 23?", "answer": "391"}',
        after='{"group": "math", "prompt": "What is 17 times 23?"}',
        prevention="Write each line with a JSON library, never by hand.",
    ),
    Explanation(
        code="DP501",
        name="bad-responses-file",
        title="A file of the target's answers cannot be used.",
        meaning=(
            "Answers are kept as JSON Lines, the token ids of a prompt under `prompt_ids` and those of what the target answered "
            "under `output_ids`. The file cannot be read or written, it holds no answer, or a line is something else. A last "
            "line that was cut short when a run was killed is no error: it is dropped and that answer is given again."
        ),
        triggers=(
            "A file of texts given to `--responses`, which takes token ids.",
            "A line edited by hand.",
            "A folder that may not be written to, or a full disk.",
        ),
        fix=(
            "Delete the line that the message names: a run that goes on asks the target again for what is missing. To train on "
            "texts, give the questions as `--prompts` and let the target answer them."
        ),
        before='{"prompt": "Name a river.", "answer": "The Rhine."}',
        after='{"prompt_ids": [1, 9690, 198], "output_ids": [504, 12, 2], "temperature": 0.0}',
        prevention="Let `draftproof train` write these files, and change nothing in them.",
    ),
    Explanation(
        code="DP502",
        name="answers-of-another-vocabulary",
        title="Answers hold tokens that the target does not have.",
        meaning=(
            "A drafter learns from token ids. These are not ids of the target's vocabulary, so another model's tokenizer made "
            "them; trained on them, a drafter would accept next to nothing."
        ),
        triggers=("A file given to `--responses` that belongs to another model.",),
        fix="Leave `--responses` out, so that the target gives its own answers, or name the target that gave these.",
        before="draftproof train --target smollm2-135m --responses qwen3-answers.jsonl …",
        after="draftproof train --target smollm2-135m --prompts questions.jsonl …",
        prevention="Keep the answers of each target in a folder of its own, named after it.",
    ),
    Explanation(
        code="DP503",
        name="answers-of-another-run",
        title="The file holds answers that were made otherwise.",
        meaning=(
            "One file holds answers of one target, made with one seed, one temperature and one limit of tokens. It says so in "
            "its first line, and what is asked for now differs, or it has no such line and cannot be gone on with."
        ),
        triggers=(
            "Training for another target, with the same output folder.",
            "Another `--temperature`, `--max-tokens` or `--seed` than the run that is to be resumed had.",
            "A file made by other means, given where a run wants to add to it.",
        ),
        fix="Ask for what the file holds (the message says what that is), or give another output folder.",
        before="draftproof train … --out drafter --max-tokens 256   # then\ndraftproof train … --out drafter --max-tokens 512",
        after="draftproof train … --out drafter-512 --max-tokens 512",
        prevention="One output folder for each recipe; a run is resumed with the very command that started it.",
    ),
    Explanation(
        code="DP504",
        name="held-out-prompt-in-training",
        title="A prompt that is held out for measuring is among the training data.",
        meaning=(
            "Acceptance is measured on prompts that the drafter has not seen. One of them is equal to a training prompt (case, "
            "white space and forms of quotes aside), holds one, stands in one, or has the same token ids. Figures measured on it "
            "would be too good."
        ),
        triggers=(
            "Training and held-out prompts cut from the same file without taking duplicates out.",
            "The same public data set under two names.",
            "A held-out question inside a longer training prompt, as an example of how to answer.",
        ),
        fix=(
            "Take the prompts that the message names out of the training files, or let the command leave them out with "
            "`--drop-leaks`."
        ),
        before="draftproof train --prompts all.jsonl --held-out part-of-all.jsonl …",
        after="draftproof train --prompts all.jsonl --held-out part-of-all.jsonl --drop-leaks …",
        prevention="Remove duplicates first, split into training and held-out prompts afterwards.",
    ),
    Explanation(
        code="DP505",
        name="bad-response-plan",
        title="How the target is to answer is out of range.",
        meaning=(
            "The share of greedy answers lies from 0 to 1, temperatures are above 0, numbers of tokens, answers and requests at "
            "once are whole numbers from 1, and the number of prompts that the target makes up is one from 0."
        ),
        triggers=(
            "`greedy_share=50` for a half.",
            "`temperature=0`: greedy answers are what `greedy_share` says.",
        ),
        fix="Give a value in the range that the message names.",
        before="ResponsePlan(greedy_share=0.5, temperature=0.0)",
        after="ResponsePlan(greedy_share=1.0)   # all greedy",
        prevention="Keep the defaults: half greedy, half at temperature 0.7.",
    ),
    Explanation(
        code="DP506",
        name="no-user-turn",
        title="The target cannot make up prompts of its own.",
        meaning=(
            "The target makes up a prompt by going on where its chat template would put the user's text. It has no chat "
            "template, or one that shows no place for a text."
        ),
        triggers=("A base model, not trained for chat, with prompts of its own asked for.",),
        fix="Leave `--own-prompts` out and give more prompts in files.",
        before="draftproof train --target gpt2 --own-prompts 2000 …",
        after="draftproof train --target gpt2 --prompts texts.jsonl …",
        prevention="Ask for prompts of its own from chat models only.",
    ),
    Explanation(
        code="DP507",
        name="features-cannot-be-kept",
        title="The folder for the target's features cannot be used.",
        meaning=(
            "What the drafter sees of the target is computed once and kept in a folder, up to a limit. That folder cannot be "
            "made, read or written. (A full disk is no error: what does not fit is computed again whenever it is needed.)"
        ),
        triggers=("A folder that belongs to someone else.", "A file where the folder should be."),
        fix="Give an output folder that you may write to, or set the limit of the kept features to 0.",
        before="draftproof train … --out /etc/drafter",
        after="draftproof train … --out ~/drafter",
        prevention="Write to a folder of your own, on a disk with some gigabytes free.",
    ),
)
