"""Explanations of DP1xx: a precondition of a verification function (`draftproof.verify`) does not hold.

The examples are runnable: they assume `torch`, the names of `draftproof.verify`, and the variables

    candidates = torch.randint(0, 50, (2, 4))      # 2 sequences, anchor + 3 draft tokens each, vocabulary 50
    logits = torch.randn(8, 50)                    # one row per candidate
    info = SamplingInfo.of(temperature=0.8, batch_size=2)
    seeds, positions = torch.tensor([1, 2]), torch.tensor([0, 0])
"""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

_TARGET_ONLY = "compute_dflash_sampling_correct_drafts_and_bonus"

_CENTRAL = (
    Explanation(
        code="DP105",
        name="logit-row-count-mismatch",
        title="The number of logit rows is not the number of candidates.",
        meaning=(
            "Verification needs one logit row for every candidate: for [bs, draft_token_num] candidates the target "
            "must return bs * draft_token_num rows, and row b * draft_token_num + t must predict the token that "
            "follows candidates[b, t]. The message gives the count expected and the count received. Nothing has been "
            "computed: with the wrong rows every draft would be judged by another token's prediction, and the output "
            "would be wrong without looking wrong."
        ),
        triggers=(
            "The target returned only the last row of each sequence (got = bs), as language models do for plain "
            "decoding to save the LM head's work.",
            "The rows still carry a batch dimension, [bs, draft_token_num, vocab]; that is DP102, and flattening the "
            "wrong two dimensions then leads here.",
            "The batch was padded, or a sequence dropped out, after the candidates were built but before the forward "
            "pass (or the other way round).",
            "The drafter proposed fewer tokens than block_size - 1 and the logits still cover the full block.",
        ),
        fix=(
            "Compare the message's two numbers. If received = bs, ask the target for logits at every position, not "
            "the last one only (Transformers: do not pass logits_to_keep=1). If received = bs * block_size, verify as "
            "many candidates as the target has seen. Then flatten to [bs * draft_token_num, vocab], sequence by "
            "sequence."
        ),
        before=(
            "last_rows = logits.view(2, 4, 50)[:, -1]          # [2, 50]: one row per sequence\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=last_rows, sampling_info=info)\n"
            "# next_token_logits row count mismatch. Expected 8, got 2."
        ),
        after=(
            "all_rows = logits.view(2, 4, 50).flatten(0, 1)     # [8, 50]: one row per candidate\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=all_rows, sampling_info=info)"
        ),
        prevention=(
            "Build candidates and logit rows from one object that knows the layout, and index rows through it only. "
            "draftproof's own engine does: one dataclass carries the candidates together with their row layout, so it "
            "cannot raise this error; you meet it when you call draftproof.verify directly."
        ),
    ),
    Explanation(
        code="DP106",
        name="logits-device-mismatch",
        title="Tensors that are verified together live on different devices.",
        meaning=(
            "Candidates, logits and every per-request tensor (sampling settings, seeds, positions, coins, draft "
            "probabilities) must be on one device. The message names the two devices found. Nothing is copied behind "
            "your back: moving the logits (bs * draft_token_num * vocab numbers) at every step would cost more than "
            "drafting saves, and moving only the candidates would hide where the time goes."
        ),
        triggers=(
            "Candidates were put together on the CPU from Python lists while the logits are on the GPU.",
            "Target and drafter run on different GPUs, e.g. cuda:0 and cuda:1.",
            "SamplingInfo.of(...) was called without device=, which means the CPU.",
            "Seeds, positions or coins were made with torch.tensor(...) without device=.",
        ),
        fix=(
            "Move the small tensors to the logits' device once, when you create them: candidates, settings, seeds, "
            "positions and coins are a few bytes per sequence. Do not move the logits."
        ),
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits.to('cuda'), sampling_info=info)\n"
            "# candidates and next_token_logits must be on the same device, got cpu and cuda:0."
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates.to(logits.device), next_token_logits=logits, sampling_info=info)"
        ),
        prevention=(
            "Take the device from the logits (device=logits.device) wherever you create a tensor that goes with them. "
            "draftproof's own engine makes candidates and rows from one dataclass on the target's device, so it "
            "cannot raise this error."
        ),
    ),
)

_SHAPES = (
    Explanation(
        code="DP100",
        name="not-a-tensor",
        title="An argument is not a torch.Tensor.",
        meaning="The functions of draftproof.verify work on tensors; lists and NumPy arrays are not converted.",
        triggers=("A Python list or NumPy array was passed.", "A needed setting, such as min_ps, is None."),
        fix="Wrap the value: torch.tensor(values), or torch.from_numpy(array), on the logits' device.",
        before=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=[[5, 6, 7]], target_predict=torch.tensor([[6, 7, 8]]))"
        ),
        after=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=torch.tensor([[5, 6, 7]]), target_predict=torch.tensor([[6, 7, 8]]))"
        ),
        prevention="Keep candidates and settings as tensors from the drafter to the verification.",
    ),
    Explanation(
        code="DP101",
        name="candidates-not-2d",
        title="Candidates are not [bs, draft_token_num].",
        meaning=(
            "Candidates are a rectangle: one line per sequence, column 0 its anchor (the last committed token), then "
            "the draft tokens. The message shows the shape received."
        ),
        triggers=(
            "A single sequence was passed without its batch dimension.",
            "The candidates were flattened, as they were for the target's forward pass.",
        ),
        fix="Reshape to [bs, draft_token_num]; for one sequence use candidates[None].",
        before=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=torch.tensor([5, 6, 7]), target_predict=torch.tensor([[6, 7, 8]]))"
        ),
        after=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=torch.tensor([5, 6, 7])[None], target_predict=torch.tensor([[6, 7, 8]]))"
        ),
        prevention="Keep the batch dimension for a batch of one, too.",
    ),
    Explanation(
        code="DP102",
        name="logits-not-2d",
        title="Logits are not [rows, vocab].",
        meaning=(
            "Logits come flat: one row per candidate, row b * draft_token_num + t for candidate t of sequence b. "
            "The message shows the shape received."
        ),
        triggers=(
            "The target's output kept its batch dimension: [bs, draft_token_num, vocab].",
            "A single row was passed as a vector.",
        ),
        fix="Flatten the first two dimensions: logits.flatten(0, 1). For one row use logits[None].",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits.view(2, 4, 50), sampling_info=info)"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits.view(2, 4, 50).flatten(0, 1), sampling_info=info)"
        ),
        prevention="Flatten once, where the target's output is received.",
    ),
    Explanation(
        code="DP103",
        name="empty-batch",
        title="There is no sequence to verify.",
        meaning="The batch size is 0. Most likely the caller's loop did not notice that all sequences had finished.",
        triggers=(
            "All sequences ended in the previous step.",
            "A filter removed every sequence from the batch.",
        ),
        fix="Do not call verification for an empty batch.",
        before=(
            "compute_dflash_correct_drafts_and_bonus(candidates=candidates[:0], target_predict=candidates[:0])"
        ),
        after="compute_dflash_correct_drafts_and_bonus(candidates=candidates, target_predict=candidates)",
        prevention="Leave the decode loop when no sequence is running.",
    ),
    Explanation(
        code="DP104",
        name="no-candidates",
        title="There is not even an anchor to verify.",
        meaning=(
            "draft_token_num counts the anchor, so it is at least 1: with 1 there are no drafts, and verification "
            "just gives the next token."
        ),
        triggers=(
            "Only the draft tokens were passed, without the anchor, and there were none.",
            "The candidates were sliced with [:, :accepted] where [:, :accepted + 1] was meant.",
        ),
        fix="Put the anchor into column 0.",
        before=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=candidates[:, :0], target_predict=candidates[:, :0])"
        ),
        after=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=candidates[:, :1], target_predict=candidates[:, :1])"
        ),
        prevention="Build candidates as torch.cat([anchor[:, None], drafts], dim=1).",
    ),
    Explanation(
        code="DP107",
        name="uniform-samples-shape-mismatch",
        title="The acceptance coins do not match the candidates.",
        meaning=(
            "uniform_samples has one coin per candidate, [bs, draft_token_num]; the last column is never used. "
            "The message gives the shape expected and the one received."
        ),
        triggers=(
            "Coins were made for the draft tokens only, [bs, draft_token_num - 1].",
            "Coins were made before sequences left the batch.",
        ),
        fix="Draw them in the shape of the candidates, or pass None and let the function draw them.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples=torch.rand(2, 3))"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples=torch.rand(2, 4))"
        ),
        prevention="Use torch.rand(candidates.shape, device=logits.device).",
    ),
    Explanation(
        code="DP108",
        name="final-uniform-samples-shape-mismatch",
        title="The bonus coins do not match the batch.",
        meaning="uniform_samples_for_final_sampling has one coin per sequence, [bs]: each draws one bonus token.",
        triggers=("Coins were made per candidate.", "The shape is [bs, 1] instead of [bs]."),
        fix="Draw torch.rand(bs), or pass None and let the function draw them.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples_for_final_sampling=torch.rand(2, 1))"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples_for_final_sampling=torch.rand(2))"
        ),
        prevention="Use torch.rand(candidates.shape[0], device=logits.device).",
    ),
    Explanation(
        code="DP109",
        name="target-predict-shape-mismatch",
        title="Predictions and candidates differ in shape.",
        meaning=(
            "The greedy rule compares candidates[b, t + 1] with target_predict[b, t], so both are "
            "[bs, draft_token_num], and the last column of target_predict is the bonus when all drafts are kept."
        ),
        triggers=(
            "The argmax was taken over the draft positions only.",
            "The argmax of flat logit rows was not brought back to [bs, draft_token_num].",
        ),
        fix="target_predict = logits.argmax(-1).view(candidates.shape).",
        before=(
            "compute_dflash_correct_drafts_and_bonus(candidates=candidates, target_predict=logits.argmax(-1))"
        ),
        after=(
            "compute_dflash_correct_drafts_and_bonus(\n"
            "    candidates=candidates, target_predict=logits.argmax(-1).view(candidates.shape))"
        ),
        prevention="Reshape right after the argmax.",
    ),
    Explanation(
        code="DP112",
        name="per-request-length-mismatch",
        title="A per-request vector does not have one entry per sequence.",
        meaning=(
            "Temperatures, top-k, top-p, min-p, seeds, positions and draft lengths have one entry per sequence (one "
            "per row in target_probs and gumbel_choice). They are never broadcast: a vector of the wrong length means "
            "that a sequence would be sampled with another one's settings."
        ),
        triggers=(
            "A sequence joined or left the batch and the settings were not rebuilt.",
            "The settings were expanded to one entry per candidate.",
            "SamplingInfo.of(...) was called without batch_size=.",
        ),
        fix="Rebuild the vectors for the batch at hand.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits,\n"
            "    sampling_info=SamplingInfo.of(temperature=0.8))"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits,\n"
            "    sampling_info=SamplingInfo.of(temperature=0.8, batch_size=2))"
        ),
        prevention="Build settings and candidates from the same list of running requests.",
    ),
    Explanation(
        code="DP120",
        name="empty-vocabulary",
        title="The logit rows have no entries.",
        meaning="The vocabulary dimension of the logits is 0, so there is no token to choose.",
        triggers=("A slice over the vocabulary came out empty.",),
        fix="Pass the rows over the whole vocabulary; mask tokens with -inf rather than cutting them out.",
        before="target_probs(logits[:, :0], SamplingInfo.of(batch_size=8))",
        after="target_probs(logits, SamplingInfo.of(batch_size=8))",
        prevention="Mask, do not slice: token ids stay valid that way.",
    ),
    Explanation(
        code="DP126",
        name="draft-probs-shape-mismatch",
        title="The drafter's probabilities do not match candidates and logits.",
        meaning=(
            "verify_rejection needs the distribution each draft token was drawn from: [bs, draft_token_num - 1, "
            "vocab], without an entry for the anchor and over the target's vocabulary."
        ),
        triggers=(
            "The drafter's output includes the anchor's slot.",
            "The drafter's vocabulary is smaller or padded differently.",
        ),
        fix="Drop the anchor's slot; bring the distribution to the target's vocabulary, with zeros for the rest.",
        before=(
            "q = torch.softmax(torch.randn(2, 4, 50), -1)\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        after=(
            "q = torch.softmax(torch.randn(2, 4, 50), -1)[:, 1:]\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        prevention="Keep the drafter's probabilities together with the tokens drawn from them.",
    ),
)

_DTYPES = (
    Explanation(
        code="DP110",
        name="not-an-integer-tensor",
        title="A tensor that holds ids or counts is not of an integer type.",
        meaning="Token ids, top-k, seeds, positions and draft lengths are integers; floats are not rounded for you.",
        triggers=(
            "torch.tensor([5.0, 6.0]) or torch.zeros(...) without dtype=.",
            "Candidates and logits swapped.",
        ),
        fix="Create the tensor with dtype=torch.int64.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates.float(), next_token_logits=logits, sampling_info=info)"
        ),
        after=f"{_TARGET_ONLY}(\n    candidates=candidates, next_token_logits=logits, sampling_info=info)",
        prevention="Give dtype=torch.int64 when allocating buffers for ids.",
    ),
    Explanation(
        code="DP111",
        name="not-a-floating-point-tensor",
        title="Logits, probabilities or coins are not of a floating-point type.",
        meaning="float16, bfloat16, float32 and float64 are all fine and need no conversion; integers are refused.",
        triggers=("Token ids were passed as logits.", "Quantised logits were not scaled back."),
        fix="Pass the target's logits as they come out of the LM head.",
        before=(
            f"{_TARGET_ONLY}(\n    candidates=candidates, next_token_logits=logits.int(), sampling_info=info)"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits.bfloat16(), sampling_info=info)"
        ),
        prevention="Keep ids and logits apart by name.",
    ),
)

_VALUES = (
    Explanation(
        code="DP113",
        name="token-out-of-vocabulary",
        title="A candidate is not a token of the target's vocabulary.",
        meaning=(
            "An anchor or draft id is negative, or not smaller than the number of logit columns. The message gives the "
            "id and where it stands. Columns past a sequence's draft length are not looked at."
        ),
        triggers=(
            "Padding ids (-1) in a ragged batch without draft_lens=.",
            "Drafter and target have different vocabularies.",
            "The drafter's mask token, which may lie past the target's vocabulary, was left in the draft.",
        ),
        fix="Pass draft_lens= for ragged drafts; otherwise find out where the id comes from.",
        before=(
            "candidates[1, 3] = -1\n"
            "verify_drafter_invariant(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info, seeds=seeds,\n"
            "    positions=positions)"
        ),
        after=(
            "candidates[1, 3] = -1\n"
            "verify_drafter_invariant(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info, seeds=seeds,\n"
            "    positions=positions, draft_lens=torch.tensor([3, 2]))"
        ),
        prevention="Load a drafter together with its target: draftproof compares the vocabularies then.",
    ),
    Explanation(
        code="DP114",
        name="temperature-out-of-range",
        title="A temperature is not a positive number.",
        meaning="Logits are divided by the temperature, so it must be > 0 and finite.",
        triggers=(
            "Temperature 0 for greedy decoding, set in the tensor directly.",
            "A negative or NaN setting.",
        ),
        fix=(
            "For greedy rows use SamplingInfo.of(temperature=0), which turns it into temperature 1 with top-k 1, or "
            "set these two yourself."
        ),
        before=(
            "info = SamplingInfo(\n"
            "    temperatures=torch.zeros(2, 1), top_ks=torch.tensor([50, 50]), top_ps=torch.ones(2))\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        after=(
            "info = SamplingInfo.of(temperature=0, batch_size=2)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        prevention="Make settings with SamplingInfo.of.",
    ),
    Explanation(
        code="DP115",
        name="top-k-out-of-range",
        title="A top-k is not positive.",
        meaning="top_ks counts the tokens that stay, so it is at least 1; the vocabulary size or more keeps all.",
        triggers=("0 or -1 for 'all', as request formats have it, put into the tensor directly.",),
        fix="Use SamplingInfo.of(top_k=0), which means all, or put TOP_K_ALL into the tensor.",
        before=(
            "info = SamplingInfo(\n"
            "    temperatures=torch.ones(2, 1), top_ks=torch.tensor([0, 20]), top_ps=torch.ones(2),\n"
            "    need_top_k_sampling=True)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        after=(
            "info = SamplingInfo.of(top_k=[0, 20])\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        prevention="Make settings with SamplingInfo.of.",
    ),
    Explanation(
        code="DP116",
        name="top-p-out-of-range",
        title="A top-p is outside (0, 1].",
        meaning="top_p is the share of the probability mass that stays; 1 keeps all of it. 0 would keep nothing.",
        triggers=("A percentage (95) instead of a share (0.95).", "0 meant as 'off'."),
        fix="Use a value in (0, 1]; 1.0 switches it off. For greedy use temperature 0.",
        before=(
            "info = SamplingInfo.of(top_p=95, batch_size=2)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        after=(
            "info = SamplingInfo.of(top_p=0.95, batch_size=2)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        prevention="Check user settings where requests come in.",
    ),
    Explanation(
        code="DP117",
        name="min-p-out-of-range",
        title="A min-p is outside [0, 1].",
        meaning="min_p drops tokens less likely than min_p times the most likely one; 0 is off, 1 keeps the best only.",
        triggers=("A percentage (5) instead of a share (0.05).", "A negative value meant as 'off'."),
        fix="Use a value in [0, 1]; 0 switches it off.",
        before=(
            "info = SamplingInfo.of(min_p=5, batch_size=2)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        after=(
            "info = SamplingInfo.of(min_p=0.05, batch_size=2)\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info)"
        ),
        prevention="Check user settings where requests come in.",
    ),
    Explanation(
        code="DP118",
        name="threshold-out-of-range",
        title="An acceptance threshold is outside [0, 1].",
        meaning=(
            "threshold_single and threshold_acc are compared with probabilities. 1.0, the default, keeps the rule "
            "lossless; lower values accept more and change the output's distribution."
        ),
        triggers=("A percentage, a negative number or NaN.",),
        fix="Leave both out, unless you want to trade exactness for acceptance.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info, threshold_acc=1.5)"
        ),
        after=f"{_TARGET_ONLY}(\n    candidates=candidates, next_token_logits=logits, sampling_info=info)",
        prevention="Use the defaults.",
    ),
    Explanation(
        code="DP119",
        name="coin-out-of-range",
        title="A uniform coin is outside [0, 1), or NaN.",
        meaning="Coins are uniform on [0, 1), as torch.rand draws them. Exactly 1 is let pass (rounding), more is not.",
        triggers=("torch.randn instead of torch.rand.", "An uninitialised buffer."),
        fix="Draw coins with torch.rand, or pass None.",
        before=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples=torch.full((2, 4), 1.5))"
        ),
        after=(
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info,\n"
            "    uniform_samples=torch.full((2, 4), 0.5))"
        ),
        prevention="Let the function draw the coins; set torch.manual_seed for repeatable runs.",
    ),
    Explanation(
        code="DP124",
        name="negative-position",
        title="An output position is negative.",
        meaning=(
            "positions holds the output index of the first choice of each sequence: 0 for the first generated token. "
            "Together with the seed it fixes the noise, so a wrong position gives another text for the same seed."
        ),
        triggers=("The prompt length was subtracted twice.", "-1 used for 'not started'."),
        fix="Pass the number of tokens generated so far.",
        before=(
            "gumbel_choice(\n"
            "    logits=logits[:2], sampling_info=info, seeds=seeds, positions=torch.tensor([-1, 0]))"
        ),
        after=(
            "gumbel_choice(\n"
            "    logits=logits[:2], sampling_info=info, seeds=seeds, positions=torch.tensor([0, 0]))"
        ),
        prevention="Derive it in one place: len(output_tokens).",
    ),
    Explanation(
        code="DP125",
        name="draft-length-out-of-range",
        title="A draft length does not fit the candidates.",
        meaning="draft_lens counts the draft tokens of a sequence without its anchor: 0 to draft_token_num - 1.",
        triggers=(
            "The anchor was counted, too.",
            "Candidates were cut to a shorter rectangle than the lengths.",
        ),
        fix="Subtract the anchor, or widen the candidates.",
        before=(
            "verify_drafter_invariant(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info, seeds=seeds,\n"
            "    positions=positions, draft_lens=torch.tensor([4, 4]))"
        ),
        after=(
            "verify_drafter_invariant(\n"
            "    candidates=candidates, next_token_logits=logits, sampling_info=info, seeds=seeds,\n"
            "    positions=positions, draft_lens=torch.tensor([3, 3]))"
        ),
        prevention="Take lengths and rectangle from the same proposals.",
    ),
    Explanation(
        code="DP127",
        name="broken-top-k-promise",
        title="max_top_k or uniform_top_k_value is not true of top_ks (debug mode).",
        meaning=(
            "With these two arguments the caller vouches for something about top_ks so that nobody has to look at it "
            "on the device. DRAFTPROOF_DEBUG=1 looks, and it is not so."
        ),
        triggers=(
            "A request with another top-k joined the batch.",
            "top-k 'all' was left out of the maximum.",
        ),
        fix="Recompute the value when the batch changes, or pass None.",
        before=(
            "import os\n"
            "os.environ['DRAFTPROOF_DEBUG'] = '1'\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits,\n"
            "    sampling_info=SamplingInfo.of(top_k=[5, 20]), max_top_k=10)"
        ),
        after=(
            "import os\n"
            "os.environ['DRAFTPROOF_DEBUG'] = '1'\n"
            f"{_TARGET_ONLY}(\n"
            "    candidates=candidates, next_token_logits=logits,\n"
            "    sampling_info=SamplingInfo.of(top_k=[5, 20]), max_top_k=20)"
        ),
        prevention="Compute it from the same list that top_ks is made of.",
    ),
)

_ROWS = (
    Explanation(
        code="DP121",
        name="nan-logits",
        title="A logit row that decides something holds NaN.",
        meaning=(
            "The target's forward produced NaN at a row that was read; the message gives the row (sequence = row // "
            "draft_token_num). Rows past a sequence's first rejection are not read and may hold anything."
        ),
        triggers=(
            "float16 overflow in the target: use bfloat16 or float32.",
            "An attention row with every key masked.",
            "A penalty or processor that computed inf - inf, or 0 * inf on masked logits.",
        ),
        fix="Find the first operator that makes it: run the target in float32 with the same input, without processors.",
        before="logits[0, 3] = float('nan')\ntarget_probs(logits, SamplingInfo.of(batch_size=8))",
        after="logits[0, 3] = -float('inf')     # masked, not undefined\n"
        "target_probs(logits, SamplingInfo.of(batch_size=8))",
        prevention="On CUDA run new models once with DRAFTPROOF_DEBUG=1, which checks every row that is read.",
    ),
    Explanation(
        code="DP122",
        name="infinite-logits",
        title="A logit row that decides something holds +inf.",
        meaning="-inf means 'masked' and is fine; +inf leaves no distribution to sample from (inf - inf is undefined).",
        triggers=("+inf used to force a token.", "float16 overflow."),
        fix="To force a token, set all others to -inf.",
        before="logits[0, 3] = float('inf')\ntarget_probs(logits, SamplingInfo.of(batch_size=8))",
        after="forced = torch.full_like(logits, -float('inf'))\nforced[:, 3] = 0.0\n"
        "target_probs(forced, SamplingInfo.of(batch_size=8))",
        prevention="Write masks with -inf only.",
    ),
    Explanation(
        code="DP123",
        name="no-finite-logit",
        title="Every token of a logit row is masked.",
        meaning="All logits of the row are -inf: there is no token the target may produce there.",
        triggers=(
            "A grammar with no continuation at this point.",
            "Allowed and banned tokens that exclude each other; min_tokens with only end tokens allowed.",
        ),
        fix="Relax the mask: at least one token must be allowed at every row that is read.",
        before="logits[0] = -float('inf')\ntarget_probs(logits, SamplingInfo.of(batch_size=8))",
        after="logits[0] = -float('inf')\nlogits[0, 7] = 0.0               # one token stays allowed\n"
        "target_probs(logits, SamplingInfo.of(batch_size=8))",
        prevention="Check grammars for dead ends before sampling.",
    ),
    Explanation(
        code="DP128",
        name="drafted-with-no-probability",
        title="A draft token has no probability under the distribution it is said to come from.",
        meaning=(
            "The rejection rule divides by q(d). A token that was really drawn from q has q(d) > 0, so the tokens and "
            "the probabilities passed do not belong together, and the output would not follow the target."
        ),
        triggers=(
            "draft_probs taken before the drafter's top-k or top-p, or from another step.",
            "Drafts chosen by argmax or by n-gram lookup: they have no q; use the drafter-invariant rule.",
            "Shifted by one: entry t belongs to candidates[:, t + 1].",
        ),
        fix="Pass the very distribution that the drafter sampled from.",
        before=(
            "q = torch.zeros(2, 3, 50)\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        after=(
            "q = torch.full((2, 3, 50), 1 / 50)\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        prevention="Let the drafter return tokens and probabilities in one object.",
    ),
    Explanation(
        code="DP129",
        name="draft-probs-not-probabilities",
        title="A row of draft probabilities holds a negative number, NaN or infinity.",
        meaning="draft_probs are probabilities, >= 0 and finite; the row named in the message is not.",
        triggers=(
            "Logits or log-probabilities passed instead.",
            "NaN from a softmax over a fully masked row.",
        ),
        fix="Apply softmax to the drafter's logits.",
        before=(
            "q = torch.full((2, 3, 50), 1 / 50)\n"
            "q[0, 0] = torch.where(torch.arange(50) == candidates[0, 1], 1.0, -0.1)\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        after=(
            "q = torch.full((2, 3, 50), 1 / 50)\n"
            "verify_rejection(\n"
            "    candidates=candidates, next_token_logits=logits, draft_probs=q, sampling_info=info)"
        ),
        prevention="Name logits and probabilities differently in the drafter.",
    ),
)

EXPLANATIONS: tuple[Explanation, ...] = (*_CENTRAL, *_SHAPES, *_DTYPES, *_VALUES, *_ROWS)
