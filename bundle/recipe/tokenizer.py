"""Train the byte-level BPE tokenizer and save it in Hugging Face layout."""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END_OF_TEXT, PAD, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|pad|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
# A line break and the indentation after it form one word, so that one token can hold both.
WORDS = r"\n+ *| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+| +(?!\S)|\s"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the configuration that transformers and vLLM read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "additional_special_tokens": [USER, ASSISTANT, END],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, nargs="+", required=True, help="folders to write to")
    args = parser.parse_args()
    with args.corpus.open() as file:
        documents = [json.loads(line) for line in file]
    texts = [document["text"] for document in documents if document["split"] == "train"]
    tokenizer = train_tokenizer(texts)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    for folder in args.out:
        save_tokenizer(tokenizer, folder)
    characters = sum(map(len, texts))
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts))
    print(f"{characters:,} characters in {tokens:,} tokens: {characters / tokens:.2f} a token")


if __name__ == "__main__":
    main()
