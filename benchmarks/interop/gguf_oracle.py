"""Holds a GGUF file as draftwise unpacks it against llama.cpp: token ids of texts, and greedy answers to conversations.

    python benchmarks/interop/gguf_oracle.py MODEL.gguf --llama-python VENV/bin/python --out results/gguf_oracle.json

The other interpreter needs llama-cpp-python. llama.cpp multiplies quantized weights with activations that it rounds to
eight bits, so that answers part where two tokens are almost equally likely: how far apart they were is recorded.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

TEXTS = (
    "Hello world, it's 2024!  \n\n def f(x):\n    return x+1\tend",
    "naïve café 日本語 12345 ½",
    "    indented\n\n\n  x = 10_000 # ok",
    "a'b don't I'LL 3.14159 ₂ Ⅳ",
    "<|im_start|>user\nHi there<|im_end|>\n",
    "tabs\t\tand  spaces   end  ",
    "emoji 😀😃 and ünïcödé",
    "1234567890 12 345",
)
REQUESTS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "List three fruits.",
    "Explain recursion in one sentence.",
    "def add(a, b):",
    "Summarize: cats sleep a lot.",
    "Return JSON with the keys a and b.",
    "Tell me a joke.",
)
NUM_TOKENS = 32
THEIRS = """
import json, sys
from llama_cpp import Llama
asked = json.load(sys.stdin)
# One token at a time: this build's kernels for batches end in a segmentation fault on some processors.
one = dict(n_batch=1, n_ubatch=1, n_threads=1, n_threads_batch=1)
model = Llama(asked["model"], n_ctx=512, use_mmap=False, verbose=False, **one)
encode = lambda text: model.tokenize(text.encode(), add_bos=False, special=True)
def answer(text):
    greedy = dict(temperature=0.0, top_k=1, repeat_penalty=1.0)
    made = model.create_completion(encode(text), max_tokens=asked["tokens"], **greedy)
    return made["choices"][0]["text"]
json.dump({"texts": [encode(text) for text in asked["texts"]], "prompts": [encode(text) for text in asked["prompts"]],
           "answers": [answer(text) for text in asked["prompts"]]}, sys.stdout)
"""


def ask_llama_cpp(python: str, model: str, prompts: list[str]) -> dict[str, Any]:
    """Return token ids and answers of llama.cpp."""
    asked = {"model": model, "texts": TEXTS, "prompts": prompts, "tokens": NUM_TOKENS}
    done = subprocess.run([python, "-c", THEIRS], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


def find_part(tokenizer: Tokenizer, ours: list[int], theirs: str) -> int | None:
    """Return the index of our first token that theirs does not have; None where the answers are equal."""
    texts = [tokenizer.decode(ours[: i + 1], False) for i in range(len(ours))]
    return next((i for i, text in enumerate(texts) if not theirs.startswith(text)), None)


def count_equal(tokenizer: Tokenizer, texts: Sequence[str], theirs: Sequence[list[int]]) -> int:
    """Return how many texts have the same token ids in both."""
    return sum(tokenizer.encode(text, False) == ids for text, ids in zip(texts, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-python", type=command_line, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    llm = LLM(args.model, dtype="float32", device="cpu", max_model_len=512, max_num_seqs=8)
    tokenizer = llm.get_tokenizer()
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": request}]) for request in REQUESTS]
    theirs = ask_llama_cpp(args.llama_python, args.model, prompts)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=2)
    outputs = llm.generate([{"prompt_token_ids": tokenizer.encode(prompt, False)} for prompt in prompts], params)
    answers = []
    for request, output, text in zip(REQUESTS, outputs, theirs["answers"], strict=True):
        made = output.outputs[0]
        ids = [token for token in made.token_ids if token not in tokenizer.end_ids]
        part = find_part(tokenizer, ids, text)
        assert made.logprobs is not None
        best = None if part is None else sorted((each.logprob for each in made.logprobs[part].values()), reverse=True)
        answers.append({"request": request, "tokens": len(ids), "part_at": part, "nats": best and best[0] - best[1]})
    report = {
        "draftwise": __version__,
        "model": Path(args.model).name,
        "machine": platform.machine(),
        "texts_with_equal_tokens": sum(
            tokenizer.encode(t, False) == ids for t, ids in zip(TEXTS, theirs["texts"], strict=True)
        ),
        "texts": len(TEXTS),
        "prompts_with_equal_tokens": sum(
            tokenizer.encode(p, False) == ids for p, ids in zip(prompts, theirs["prompts"], strict=True)
        ),
        "answers": answers,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
