"""Explanations of DP4xx: what is wrong with a prompt or with a sampling parameter."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

_PROMPTS: tuple[Explanation, ...] = (
    Explanation(
        code="DP401",
        name="empty-prompt",
        title="The prompt has no tokens.",
        meaning=(
            "A causal language model predicts the token after the ones it has seen. With an empty prompt "
            "it has seen none, so there is nothing to predict from."
        ),
        triggers=(
            "An empty string, with a tokenizer that puts no begin token in front.",
            "An empty list of token ids.",
            "A variable or file that was expected to hold the prompt and is empty.",
        ),
        fix="Give the model at least one token; to let it write freely, pass its begin token or a newline.",
        before='llm.generate("")',
        after='llm.generate("Once upon a time")',
        prevention="Check for empty input where the prompts are read, and report which record was empty.",
    ),
    Explanation(
        code="DP402",
        name="prompt-too-long",
        title="The prompt does not fit the context with room for one new token.",
        meaning=(
            "The prompt and the output share the model's context. The prompt alone already fills it, so "
            "not one token can be generated. Nothing is cut off silently, because a cut prompt asks "
            "another question."
        ),
        triggers=(
            "A document longer than the model's context length.",
            "`max_model_len` set lower than the prompt needs.",
            "A chat whose history has grown turn by turn.",
        ),
        fix=(
            "Shorten the prompt, raise `max_model_len` up to what the model supports, or take a "
            "longer-context model."
        ),
        before='llm = LLM("smollm2-135m", max_model_len=512)\nllm.generate(prompt_of_600_tokens)',
        after='llm = LLM("smollm2-135m", max_model_len=2048)\nllm.generate(prompt_of_600_tokens)',
        prevention="Count tokens before sending: prompt tokens + 1 must not exceed `max_model_len`.",
    ),
    Explanation(
        code="DP403",
        name="token-id-out-of-range",
        title="A token id of the prompt is not in the model's vocabulary.",
        meaning=(
            "Token ids are row numbers of the model's embedding. This one is negative or past the last "
            "row, so the prompt was made for another model."
        ),
        triggers=(
            "Ids made with another model's tokenizer.",
            "A tokenizer with added tokens that the model was never resized for.",
            "Padding or ignore marks such as -100 left in the ids.",
        ),
        fix="Tokenize with the tokenizer of this model, or pass text and let draftproof tokenize it.",
        before="llm.generate([[1, 2, -100]])",
        after="llm.generate([[1, 2]])",
        prevention="Keep text, not ids, wherever prompts are stored; ids belong to one tokenizer.",
    ),
    Explanation(
        code="DP404",
        name="bad-prompt-type",
        title="The prompt is neither text nor a list of token ids.",
        meaning="A prompt is a string or a list of whole numbers; several prompts are a list of these.",
        triggers=(
            "Messages with roles passed to `generate` instead of `chat`.",
            "None, a number or bytes where the text should be.",
            "Token ids as floating-point numbers, or a batch of ids nested one level too deep.",
        ),
        fix="Pass a string, a list of token ids, or a list of either; pass chat messages to `chat`.",
        before='llm.generate([{"role": "user", "content": "Hi"}])',
        after='llm.chat([{"role": "user", "content": "Hi"}])',
        prevention=(
            "Annotate the variable that holds prompts (`list[str]`) and let a type checker look after it."
        ),
    ),
    Explanation(
        code="DP405",
        name="no-chat-template",
        title="The model's tokenizer has no chat template.",
        meaning=(
            "A chat template turns messages into the exact text the model was trained on. This tokenizer "
            "brings none, and a guessed one would lower quality without a word."
        ),
        triggers=(
            "A base model, which was never trained to chat.",
            "A folder that lacks `chat_template.jinja` or the template in `tokenizer_config.json`.",
        ),
        fix=(
            "Use the instruct variant of the model, add its template to the folder, or call `generate` "
            "with plain text."
        ),
        before='LLM("./base-model").chat([{"role": "user", "content": "Name a colour."}])',
        after='LLM("./base-model").generate("My favourite colour is")',
        prevention="When copying a model folder, copy all of it, the tokenizer's files included.",
    ),
    Explanation(
        code="DP406",
        name="bad-messages",
        title="The chat messages do not have the expected form.",
        meaning=(
            "A chat is a list of messages, each a dictionary with a `role` and a `content`; the model's "
            "template also decides which roles it takes and in which order."
        ),
        triggers=(
            "A single string instead of a list of messages.",
            "A message without `role` or `content`, or with content that is not text.",
            "A role the template refuses, or two messages in a row from the same side where it wants turns.",
        ),
        fix="Pass `[{'role': 'user', 'content': '...'}]`, with the roles the model's template knows.",
        before='llm.chat("Hi")',
        after='llm.chat([{"role": "user", "content": "Hi"}])',
        prevention="Build messages in one place in your code, so that each has both keys.",
    ),
)

_SAMPLING: tuple[Explanation, ...] = (
    Explanation(
        code="DP420",
        name="bad-temperature",
        title="The temperature is not a number from 0 to 1000000.",
        meaning=(
            "Logits are divided by the temperature before a token is drawn. 0 is greedy decoding (always "
            "the likeliest token), 1 the model's own distribution, higher is more random. Below 0 the "
            "order would be turned upside down; NaN and infinity have no distribution at all."
        ),
        triggers=(
            "A negative temperature, often -1 meant as `not set`.",
            "NaN or infinity from an earlier calculation.",
            "A string from a form or an environment variable, or True.",
        ),
        fix=(
            "Pass 0 for greedy decoding, a number such as 0.8 to sample, or leave it out for the model's "
            "default."
        ),
        before="SamplingParams(temperature=-1)",
        after="SamplingParams(temperature=0)",
        prevention="Use None, not -1, for `not set`; convert input to float where it enters your program.",
    ),
    Explanation(
        code="DP421",
        name="bad-top-p",
        title="top_p is not above 0 and at most 1.",
        meaning=(
            "top_p keeps the likeliest tokens until their probabilities add up to this share. A share of "
            "0 keeps nothing; more than 1 can never be reached."
        ),
        triggers=(
            "top_p=0, meant as `off` or as `greedy`.",
            "A percentage such as 95.",
            "A string, NaN or True.",
        ),
        fix="Pass a share such as 0.95; 1 turns it off; for greedy decoding set temperature=0.",
        before="SamplingParams(temperature=0.8, top_p=95)",
        after="SamplingParams(temperature=0.8, top_p=0.95)",
        prevention="Leave out what you do not want to change: None takes the model's default.",
    ),
    Explanation(
        code="DP422",
        name="bad-top-k",
        title="top_k is not a whole number of at least -1.",
        meaning="top_k keeps that many of the likeliest tokens; 0 and -1 keep all of them.",
        triggers=(
            "A number below -1.",
            "A fraction such as 0.5 or 20.0.",
            "A string or True.",
        ),
        fix="Pass a whole number such as 20, or 0 for all tokens.",
        before="SamplingParams(temperature=1.0, top_k=20.0)",
        after="SamplingParams(temperature=1.0, top_k=20)",
        prevention="Keep counts in int variables; `int(...)` them where they are read from text or JSON.",
    ),
    Explanation(
        code="DP423",
        name="bad-min-p",
        title="min_p is not a number from 0 to 1.",
        meaning=(
            "min_p drops every token whose probability is below this share of the likeliest token's "
            "probability. 0 drops nothing, 1 keeps only the likeliest."
        ),
        triggers=(
            "A percentage such as 5.",
            "A negative number, meant as `off`.",
            "A string, NaN or True.",
        ),
        fix="Pass a share such as 0.05, or 0 to turn it off.",
        before="SamplingParams(temperature=1.0, min_p=5)",
        after="SamplingParams(temperature=1.0, min_p=0.05)",
        prevention="Leave out what you do not want to change: None takes the model's default.",
    ),
    Explanation(
        code="DP424",
        name="bad-seed",
        title="The seed is not a whole number that fits 64 bits.",
        meaning=(
            "The seed and the position of a token fix the random numbers that choose it, so a seed fixes "
            "the text, with any drafter or none. It is a signed 64-bit number: -2**63 to 2**63 - 1."
        ),
        triggers=(
            "An unsigned 64-bit hash or a UUID as a number.",
            "A floating-point number, such as a time in seconds.",
            "A string or True.",
        ),
        fix="Pass an int in range; leave the seed out to have one drawn (the result's `seed` reports it).",
        before="SamplingParams(temperature=0.8, seed=18446744073709551615)",
        after="SamplingParams(temperature=0.8, seed=18446744073709551615 % 2**63)",
        prevention="Reduce hashes with `% 2**63` before using them as seeds.",
    ),
    Explanation(
        code="DP425",
        name="bad-max-tokens",
        title="max_tokens is not a whole number of at least 1.",
        meaning=(
            "max_tokens is the most tokens to generate; the output is never longer, drafted tokens included."
        ),
        triggers=(
            "0, or -1 meant as `no limit`.",
            "None: there is always a limit here.",
            "What is left of a budget after subtracting more than there was.",
        ),
        fix=(
            "Pass the number of tokens you are ready to wait for; the context length limits the output as"
            " well."
        ),
        before="SamplingParams(max_tokens=-1)",
        after="SamplingParams(max_tokens=1024)",
        prevention="When computing a budget, use `max(1, budget - used)` or do not send the request.",
    ),
    Explanation(
        code="DP426",
        name="bad-stop-strings",
        title="A stop string is empty or not a string.",
        meaning=(
            "The output ends where one of the stop strings appears in the text. An empty string appears "
            "everywhere, so the output would end before it began."
        ),
        triggers=(
            "An empty entry, e.g. from splitting a setting at commas.",
            "Token ids in `stop` instead of `stop_token_ids`.",
            "Bytes, a set or None inside the list.",
        ),
        fix="Pass one string or a list of non-empty strings; put token ids into `stop_token_ids`.",
        before='SamplingParams(stop=["\\n\\n", ""])',
        after='SamplingParams(stop=["\\n\\n"])',
        prevention="Drop empty entries where the list is made: `[s for s in stops if s]`.",
    ),
    Explanation(
        code="DP427",
        name="bad-stop-token-ids",
        title="A stop token id is not a token id of the model.",
        meaning=(
            "stop_token_ids are whole numbers from 0 to the vocabulary size less one; the output ends "
            "with the first of them. An id outside that range could never come up."
        ),
        triggers=(
            "A negative id, e.g. from a lookup that found nothing.",
            "A token's text instead of its id, or a single number instead of a list.",
            "Ids of another model's tokenizer.",
        ),
        fix="Look the ids up in this model's tokenizer: `tokenizer.convert_tokens_to_ids('<|im_end|>')`.",
        before="SamplingParams(stop_token_ids=[-1])",
        after="SamplingParams(stop_token_ids=[2])",
        prevention="Use `stop` with text where you can; the text does not depend on the tokenizer.",
    ),
    Explanation(
        code="DP428",
        name="bad-switch",
        title="An on/off parameter is neither True nor False.",
        meaning=(
            "`ignore_eos`, `include_stop_str_in_output` and `skip_special_tokens` are switches. Other "
            "values are refused because Python takes most of them, the string 'false' included, for true."
        ),
        triggers=(
            "The string 'true' or 'false' from a form or an environment variable.",
            "0, 1 or None.",
        ),
        fix="Pass True or False.",
        before='SamplingParams(ignore_eos="false")',
        after="SamplingParams(ignore_eos=False)",
        prevention="Convert settings where they are read: `value.lower() == 'true'`.",
    ),
    Explanation(
        code="DP429",
        name="bad-generation-config",
        title="The model's generation_config.json holds a sampling value that cannot be used.",
        meaning=(
            "Sampling fields that a request leaves out come from the model's generation_config.json. One "
            "of them is out of its range, so the model's defaults are not what their author meant."
        ),
        triggers=(
            "A hand-edited file with a typing error.",
            'A value saved as text, e.g. "0.7" in quotation marks.',
            "top_p of 0 or a negative temperature, meant as `off`.",
        ),
        fix="Correct or remove that field in generation_config.json; a missing field is neutral.",
        before="SamplingDefaults.from_generation_config({'do_sample': True, 'temperature': '0.7'})",
        after="SamplingDefaults.from_generation_config({'do_sample': True, 'temperature': 0.7})",
        prevention="Write the file with Transformers' `GenerationConfig.save_pretrained`.",
    ),
)

_ENGINE = (
    Explanation(
        code="DP430",
        name="params-count-mismatch",
        title="The number of SamplingParams does not fit the number of prompts",
        meaning="Several prompts take either one SamplingParams for all of them or exactly one each.",
        triggers=("a list of parameters shorter or longer than the list of prompts",),
        fix="Pass a single SamplingParams, or a list as long as the list of prompts.",
        before="llm.generate(['a', 'b', 'c'], [SamplingParams(), SamplingParams()])",
        after="llm.generate(['a', 'b', 'c'], SamplingParams())",
        prevention="Build prompts and parameters in the same loop.",
    ),
    Explanation(
        code="DP431",
        name="bad-max-model-len",
        title="max_model_len is not a length this model can have",
        meaning="max_model_len limits prompt and output together. It can shorten the model's own context, not lengthen it: "
        "positions the model never saw in training give garbage.",
        triggers=(
            "a max_model_len above the model's max_position_embeddings",
            "a length under 2, or not a whole number",
        ),
        fix="Leave it out for the model's own context, or pass a smaller whole number.",
        before='LLM("smollm2-135m", max_model_len=100_000)   # the model has 8,192 positions',
        after='LLM("smollm2-135m", max_model_len=4096)',
        prevention="Look at max_position_embeddings in the model's config.json.",
    ),
    Explanation(
        code="DP432",
        name="bad-params-type",
        title="params is not SamplingParams",
        meaning="How to sample and where to stop is said in SamplingParams, which checks every field when it is made.",
        triggers=("a dict of options in place of SamplingParams", "arguments in the wrong order"),
        fix="Make a SamplingParams, or leave params out for the model's defaults.",
        before='llm.generate("hi", {"temperature": 0.8})',
        after='llm.generate("hi", SamplingParams(temperature=0.8))',
        prevention="Type checkers catch it: the package is typed.",
    ),
)

_ROW_RULES: tuple[Explanation, ...] = (
    Explanation(
        code="DP433",
        name="bad-repetition-penalty",
        title="The repetition penalty is not a number above 0.",
        meaning=(
            "Logits of tokens that prompt or output already have are divided by this number where they are "
            "positive and multiplied by it where they are not. 1 changes nothing, 1.1 discourages repetition, below 1 "
            "encourages it. Division by 0 has no result, and outside 1e-6 to 1e6 logits overflow."
        ),
        triggers=(
            "0, meant as `off`: off is 1.",
            "A value on the scale of presence_penalty, such as -0.5.",
            "A string, NaN or True.",
        ),
        fix="Pass a number such as 1.1; 1 turns it off; leave it out for the model's default.",
        before="SamplingParams(repetition_penalty=0)",
        after="SamplingParams(repetition_penalty=1.0)",
        prevention="Remember that this one multiplies (neutral at 1) while the other two penalties subtract (neutral at 0).",
    ),
    Explanation(
        code="DP434",
        name="bad-output-penalty",
        title="A presence or frequency penalty is not a number from -2 to 2.",
        meaning=(
            "presence_penalty is taken from the logit of every token the output already has, frequency_penalty once for "
            "each time it has it. 0 changes nothing; the range is that of the OpenAI API."
        ),
        triggers=(
            "A value meant for repetition_penalty on another scale, or a percentage.",
            "A string, None, NaN or True.",
        ),
        fix="Pass a number such as 0.5, or leave it out.",
        before="SamplingParams(presence_penalty=5)",
        after="SamplingParams(presence_penalty=0.5)",
        prevention="Start at 0.5 and raise in small steps: at 2 the text avoids even its own commas.",
    ),
    Explanation(
        code="DP435",
        name="bad-logit-bias",
        title="logit_bias is not a dictionary of token ids to numbers from -100 to 100.",
        meaning=(
            "Each entry adds a number to the logit of one token. Keys are token ids, as whole numbers or as strings of "
            "digits (JSON objects have no other keys); 100 all but forces a token, -100 all but forbids it."
        ),
        triggers=(
            "A token's text as the key.",
            "A bias outside -100 to 100, or one that is no number.",
            "An id that is not in this model's vocabulary, from another model's tokenizer.",
        ),
        fix="Look the ids up in this model's tokenizer and keep the numbers from -100 to 100.",
        before='SamplingParams(logit_bias={"hello": 5})',
        after='SamplingParams(logit_bias={"31414": 5})',
        prevention="To forbid or to require tokens outright, use banned_token_ids or allowed_token_ids.",
    ),
    Explanation(
        code="DP436",
        name="bad-token-list",
        title="allowed_token_ids or banned_token_ids is no usable list of token ids.",
        meaning=(
            "allowed_token_ids are the only tokens that may come, banned_token_ids never come. Each is a list of ids of "
            "this model's vocabulary, and together they must leave at least one token."
        ),
        triggers=(
            "An empty list of allowed tokens: nothing could be generated (None allows all).",
            "Every allowed token is banned as well.",
            "Negative ids, texts, or ids of another model's tokenizer.",
        ),
        fix="Look the ids up in this model's tokenizer, and leave at least one token that is allowed and not banned.",
        before="SamplingParams(allowed_token_ids=[5, 7], banned_token_ids=[5, 7])",
        after="SamplingParams(allowed_token_ids=[5, 7], banned_token_ids=[7])",
        prevention="Use one of the two lists; where texts are what you mean, use structured_outputs.",
    ),
    Explanation(
        code="DP437",
        name="bad-min-tokens",
        title="min_tokens is not a whole number from 0 to max_tokens.",
        meaning="No end token comes before the output has min_tokens tokens, so it cannot be more than max_tokens.",
        triggers=(
            "min_tokens above max_tokens; max_tokens is 256 when left out.",
            "-1 meant as `off`: off is 0.",
            "A fraction, a string or True.",
        ),
        fix="Lower min_tokens or raise max_tokens.",
        before="SamplingParams(min_tokens=500)",
        after="SamplingParams(min_tokens=500, max_tokens=1000)",
        prevention="Set both together whenever you set min_tokens.",
    ),
    Explanation(
        code="DP438",
        name="bad-number-of-outputs",
        title="n is not a whole number from 1 to 16384.",
        meaning="n is how many outputs are generated for the prompt; each has a seed derived from the request's.",
        triggers=("0, a negative number or None.", "A fraction, a string or True."),
        fix="Pass a whole number such as 3, or leave it out for one output.",
        before="SamplingParams(n=0)",
        after="SamplingParams(n=1)",
        prevention="Where a computed n may be 0, do not send the request.",
    ),
    Explanation(
        code="DP439",
        name="bad-logprobs",
        title="logprobs or prompt_logprobs is no count of tokens.",
        meaning=(
            "They say how many of the likeliest tokens are reported at each position, beside the token that stands there: "
            "0 for that token alone, -1 for the whole vocabulary, None for no log-probabilities."
        ),
        triggers=(
            "True, as the OpenAI chat API writes it: here it is the number that API calls top_logprobs.",
            "A number above the vocabulary size, or below -1.",
        ),
        fix="Pass a whole number such as 5, or None.",
        before="SamplingParams(logprobs=True)",
        after="SamplingParams(logprobs=5)",
        prevention="Ask for a handful: each one costs space in every position of the result.",
    ),
)

_STRUCTURED: tuple[Explanation, ...] = (
    Explanation(
        code="DP444",
        name="bad-structured-outputs",
        title="structured_outputs does not say one form of output.",
        meaning=(
            "structured_outputs is a StructuredOutputs with exactly one of json, regex, grammar, choice and json_object "
            "set: json a schema (text, dictionary or pydantic model class), regex and grammar a string, choice a list of "
            "strings, json_object True."
        ),
        triggers=(
            "Nothing set, or two forms at once.",
            "A plain dictionary in place of StructuredOutputs.",
            "An empty choice, or one that is not text.",
        ),
        fix="Set the one form that is meant; combine several in a grammar.",
        before='StructuredOutputs(regex="[0-9]+", choice=["1", "2"])',
        after='StructuredOutputs(choice=["1", "2"])',
        prevention="Make StructuredOutputs where you know the form, not from optional settings passed through.",
    ),
    Explanation(
        code="DP445",
        name="bad-json-schema",
        title="The JSON schema cannot be turned into a grammar.",
        meaning=(
            "The schema is not JSON, not a valid schema, describes no value at all, or uses a keyword that cannot be "
            "enforced token by token. It is refused as a whole: output that obeys half a schema would be worse than none."
        ),
        triggers=(
            "A keyword such as `not`, `uniqueItems` or `contains`, which the grammar engine does not enforce.",
            "A `$ref` that leads nowhere or to another document.",
            "Bounds that contradict each other, e.g. minLength above maxLength.",
            "JSON with a trailing comma, or a Python object that JSON has no form for.",
        ),
        fix="Take the keyword that the message names out of the schema, and check its rule on the finished output.",
        before='StructuredOutputs(json=\'{"type": "integer",}\')',
        after='StructuredOutputs(json=\'{"type": "integer"}\')',
        prevention="Keep schemas to types, properties, required, items, enum, const, anyOf, pattern and bounds.",
    ),
    Explanation(
        code="DP446",
        name="bad-regex",
        title="The regular expression cannot be turned into a grammar.",
        meaning=(
            "The expression has a fault, or a feature that a finite automaton cannot have. The whole output must match it, "
            "so `^` and `$` are not needed."
        ),
        triggers=(
            "An unclosed bracket or group.",
            "Look-ahead, look-behind or a back-reference.",
            "An expression that no text can match, such as `[^\\s\\S]`.",
        ),
        fix="Mend what the message points at; write look-arounds out as alternatives.",
        before='SamplingParams(structured_outputs=StructuredOutputs(regex="[0-9"))',
        after='SamplingParams(structured_outputs=StructuredOutputs(regex="[0-9]"))',
        prevention="Write expressions in the syntax of Rust's regex crate, and try them there first.",
    ),
    Explanation(
        code="DP447",
        name="bad-grammar",
        title="The grammar cannot be used.",
        meaning=(
            "grammar is a Lark grammar whose rule `start` describes the whole output. Either it has a fault, which the "
            "message points at, or following it took more work than its limits allow."
        ),
        triggers=(
            "A rule that is used and not defined, or no rule `start`.",
            "A syntax slip: a rule without its colon, a string without its quotation mark.",
            "A grammar so ambiguous, or a schema with so many properties, that the parser runs out of its budget on the way.",
        ),
        fix="Mend the line that the message names; where it is a limit, make rules less ambiguous.",
        before="SamplingParams(structured_outputs=StructuredOutputs(grammar='start: digits'))",
        after="SamplingParams(structured_outputs=StructuredOutputs(grammar='start: digits\\ndigits: /[0-9]+/'))",
        prevention="Prefer a JSON schema, a regex or a choice where one of them says the same.",
    ),
    Explanation(
        code="DP448",
        name="no-token-left",
        title="The request's rules leave no token to choose.",
        meaning=(
            "At this position every token is masked: by the grammar, by allowed_token_ids and banned_token_ids, or by "
            "min_tokens, which masks the end tokens. Any choice would break a rule, so the request ends in this error."
        ),
        triggers=(
            "A grammar that needs tokens which allowed_token_ids lacks or banned_token_ids has.",
            "A grammar that is complete before min_tokens is reached, so that only an end token could come.",
            "Only end tokens allowed, and min_tokens above 0.",
        ),
        fix="Drop the rule that the message names, or give the grammar room for what the other rule asks.",
        before="SamplingParams(min_tokens=50, structured_outputs=StructuredOutputs(choice=['yes', 'no']))",
        after="SamplingParams(structured_outputs=StructuredOutputs(choice=['yes', 'no']))",
        prevention="Put length into the grammar itself (`[a-z ]{200,}`, minLength) rather than beside it.",
    ),
    Explanation(
        code="DP449",
        name="tokenizer-without-grammars",
        title="The model's tokenizer cannot be used with a grammar.",
        meaning=(
            "A grammar is matched against the bytes that each token stands for. They are read from the tokenizer's fast "
            "(Rust) form, and this tokenizer has none or keeps its tokens in a way from which bytes cannot be told."
        ),
        triggers=(
            "A slow (pure Python) tokenizer.",
            "A model loaded without a tokenizer.",
            "A tokenizer kind that the grammar engine does not know, such as WordPiece.",
        ),
        fix="Leave structured_outputs out, or use the model with its fast tokenizer (`tokenizer.json`).",
        before='LLM("./slow-tokenizer").generate("One:", SamplingParams(structured_outputs=digit))',
        after='LLM("smollm2-135m").generate("One:", SamplingParams(structured_outputs=digit))',
        prevention="Keep `tokenizer.json` in the model folder.",
    ),
)

EXPLANATIONS: tuple[Explanation, ...] = (*_PROMPTS, *_SAMPLING, *_ENGINE, *_ROW_RULES, *_STRUCTURED)
