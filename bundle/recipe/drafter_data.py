"""Join what drafters learn: the target's answers with their prompts, and a corpus if given; every token is learnt."""

import argparse
import gzip
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--answers", type=Path, nargs="+", required=True, help="what answers.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file")
    args = parser.parse_args()
    written = args.out.with_name(args.out.name + ".part")
    with gzip.open(written, "wt", compresslevel=1, encoding="utf-8") as out:
        for file in args.answers:
            with gzip.open(file, "rt", encoding="utf-8") as answers:
                out.writelines(json.dumps({"token_ids": json.loads(line)["token_ids"]}) + "\n" for line in answers)
        if args.corpus:
            with args.corpus.open(encoding="utf-8") as corpus:
                for document in map(json.loads, corpus):
                    if document["split"] != "heldout":
                        out.write(json.dumps({"text": document["text"]}) + "\n")
    written.rename(args.out)


if __name__ == "__main__":
    main()
