"""Join what the drafters learn: the target's answers with their prompts, and the corpus; every token is learnt."""

import argparse
import gzip
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True, help="what answers.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file")
    args = parser.parse_args()
    written = args.out.with_name(args.out.name + ".part")
    with (
        gzip.open(written, "wt", compresslevel=1, encoding="utf-8") as out,
        gzip.open(args.answers, "rt", encoding="utf-8") as answers,
        args.corpus.open(encoding="utf-8") as corpus,
    ):
        for line in answers:
            out.write(json.dumps({"token_ids": json.loads(line)["token_ids"]}) + "\n")
        for document in map(json.loads, corpus):
            if document["split"] != "heldout":
                out.write(json.dumps({"text": document["text"]}) + "\n")
    written.rename(args.out)


if __name__ == "__main__":
    main()
