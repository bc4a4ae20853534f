"""Which shape of a drafter is accepted most, at about the same size? Trains several side by side, on all GPUs.

For the bundled model: eagle3. For SmolLM2-135M: p_eagle. The targets answer the prompts first. What is finished stays
in `--work`, so that a run that its time limit ended goes on when it is started again: answers one by one, training at
its last checkpoint. `--out` gets the weights of each drafter once they are there (until it is finished, those of its
last checkpoint, named `.partial`), and `rest.tar.gz`: logs, settings and acceptance of all, SmolLM2's mtp module too.
The prompts are `make prompts` of bundle/smollm2/recipe and of bundle/recipe, there `drafter_prompts.py --count 80000
--package-count 55000 --packages` networkx, numpy, scipy, sympy, matplotlib, torch, transformers, pygments, fontTools.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from record import existing_path
from safetensors.torch import save_file

from draftwise.engine.models.gguf import checkpoint_of

ROOT = Path(__file__).parents[2]
BUNDLE, SMOLLM2 = ROOT / "bundle", ROOT / "bundle/smollm2"
SHAPES = {
    "eagle3": {
        "as_before": "--target-layers 2,4,7 --draft-vocab-size 3072 --intermediate-size 1024",
        "last_state": "--target-layers 2,5,8 --intermediate-size 1024",
        "target_head": "--target-layers 2,5,8 --intermediate-size 2048 --lm-head target",
        "8_values": "--target-layers 2,5,8 --intermediate-size 1536 --lm-head target --num-key-value-heads 8 --lr 2e-3",
        "two_layers": "--target-layers 2,5,8 --intermediate-size 1024 --lm-head target --num-key-value-heads 8"
        " --lr 2e-3 --num-layers 2",
    },
    "p_eagle": {
        "1_layer": "--num-layers 1 --intermediate-size 1024",
        "2_layers": "--num-layers 2 --intermediate-size 256 --target-layers 2,15,30",
        "own_head": "--num-layers 2 --intermediate-size 768 --target-layers 2,15,30 --num-key-value-heads 9"
        " --lm-head own --draft-vocab-size 10240 --num-speculative-tokens 4",
        "3_layers": "--num-layers 3 --intermediate-size 128 --target-layers 30",
    },
}
COMMON = {
    "eagle3": "--num-speculative-tokens 4 --max-length 512 --heldout 0.01",
    "p_eagle": "--num-speculative-tokens 5 --max-length 768 --heldout 0.005 --parallel --lm-head target",
}
BATCH_TOKENS = {"eagle3": 65536, "p_eagle": 32768}
PARTS = {"eagle3": (6, 6), "eagle3_sampled": (3, 6), "p_eagle": (3, 6), "p_eagle_chats": (2, 2)}
"""Processes that answer a file's prompts, and how many parts these are divided into: 3 of 6 leave out half of them."""
CHECKPOINT_EVERY = 300
LEARN_PROMPTS = {("eagle3", "8_values"), ("eagle3", "two_layers")}
"""Families and shapes that learn the prompts' tokens too; the others guess better on prompts that they have seen."""
TRIES = 3
"""A process that fails is started again, at its last checkpoint: a launch on a crowded GPU may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process on one GPU; done once `made` is there."""

    name: str
    command: tuple[str, ...]
    made: Path
    needs: tuple[Path, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--prompts", type=existing_path, help="for the bundled model: a .jsonl.gz file; none: no eagle3"
    )
    parser.add_argument("--smollm2", type=existing_path, help="the GGUF file; none: no p_eagle")
    parser.add_argument("--smollm2-prompts", type=existing_path, help="a .jsonl.gz file")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", nargs="+", help="only these")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--steps", type=int, nargs=2, default=(1500, 700), metavar=("EAGLE3", "P_EAGLE"))
    parser.add_argument("--gpus", type=int, nargs="+", help="only these")
    parser.add_argument("--chats", type=int, default=10000)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if bool(args.smollm2) != bool(args.smollm2_prompts):
        parser.error("--smollm2 and --smollm2-prompts belong together")
    args.work.mkdir(parents=True, exist_ok=True)
    jobs = []
    if args.prompts:
        answers = answer_jobs("eagle3", BUNDLE / "target", args.prompts, 160, args)
        answers += answer_jobs("eagle3_sampled", BUNDLE / "target", args.prompts, 160, args, temperature=0.8)
        jobs += answers + training_jobs("eagle3", BUNDLE / "target", answers, args)
    if args.smollm2:
        args.smollm2 = Path(checkpoint_of(str(args.smollm2), say))  # once, before many processes need it
        chats = args.work / "chats.jsonl.gz"
        jobs += [chat_job(chats, args)]
        answers = answer_jobs("p_eagle", args.smollm2, args.smollm2_prompts, 256, args)
        answers += answer_jobs("p_eagle_chats", args.smollm2, chats, 256, args, needs=(chats,))
        jobs += answers + training_jobs("p_eagle", args.smollm2, answers, args)
        if (weights := SMOLLM2 / "mtp/model.safetensors").exists():
            jobs += [evaluation_job("mtp", SMOLLM2 / "mtp", weights, args.smollm2, args)]
    args.out.mkdir(parents=True, exist_ok=True)
    left = run(jobs, args)
    collect(args)
    if left:
        sys.exit(f"not finished within {args.minutes:g} minutes: {', '.join(left)}. The same command goes on.")


def chat_job(chats: Path, args: argparse.Namespace) -> Job:
    heldout = args.work / "heldout-chat.jsonl"
    shutil.copy(SMOLLM2 / "heldout/chat.jsonl", heldout)
    script = [str(SMOLLM2 / "recipe/chats.py"), "--target", str(args.smollm2), "--count", str(args.chats)]
    return Job(name="chats", command=(*script, "--out", str(chats), "--heldout", str(heldout)), made=chats)


def answer_jobs(
    name: str,
    target: Path,
    prompts: Path,
    tokens: int,
    args: argparse.Namespace,
    *,
    temperature: float = 0.0,
    needs: tuple[Path, ...] = (),
) -> list[Job]:
    jobs = []
    processes, parts = PARTS[name]
    for i in range(processes):
        made = args.work / f"{name}-answers-{i}.jsonl.gz"
        command = [str(BUNDLE / "recipe/answers.py"), "--target", str(target), "--prompts", str(prompts)]
        command += ["--cache", str(made.with_suffix(".cache")), "--out", str(made), "--new-tokens", str(tokens)]
        command += ["--part", f"{i}/{parts}", "--memory", "0.05", "--device", args.device]
        command += ["--temperature", str(temperature)]
        jobs.append(Job(name=made.name.split(".")[0], command=tuple(command), made=made, needs=needs))
    return jobs


def training_jobs(family: str, target: Path, answers: list[Job], args: argparse.Namespace) -> list[Job]:
    answered = tuple(job.made for job in answers)
    steps = args.steps[list(SHAPES).index(family)]
    whole = args.work / f"{family}-whole.jsonl.gz"
    join = (str(BUNDLE / "recipe/drafter_data.py"), "--answers", *map(str, answered), "--out", str(whole))
    jobs = [Job(name=whole.name.split(".")[0], command=join, made=whole, needs=answered)] if family == "eagle3" else []
    for shape, options in SHAPES[family].items():
        if args.shapes and shape not in args.shapes:
            continue
        out, data = args.work / family / shape, answered
        if (family, shape) in LEARN_PROMPTS:
            data = (whole,)
        command = ["-m", "draftwise", "train", "eagle3", "--target", str(target), "--answers", "given", "--seed", "7"]
        command += [f"--data={each}" for each in data] + ["--steps", str(steps), "--eval-every", "500"]
        command += ["--save-every", str(CHECKPOINT_EVERY)]
        command += ["--batch-tokens", str(BATCH_TOKENS[family] if args.device == "cuda" else 2048)]
        command += ["--out", str(out), "--device", args.device, *COMMON[family].split(), *options.split()]
        made = out / "config.json"  # what is moved into place last
        jobs.append(Job(name=f"{family}-{shape}", command=tuple(command), made=made, needs=data))
        jobs.append(evaluation_job(family, out, made, target, args))
    return jobs


def evaluation_job(family: str, drafter: Path, weights: Path, target: Path, args: argparse.Namespace) -> Job:
    made = args.work / f"{family}-{drafter.name}.json"
    folder = args.work / "evaluated" / drafter.name
    folder.mkdir(parents=True, exist_ok=True)
    links = {family: drafter, "target": target} if family == "eagle3" else {family: drafter}
    for name, there in links.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(there.resolve())
    if family == "eagle3":
        script = [
            str(BUNDLE / "recipe/evaluate_drafters.py"),
            "--bundle",
            str(folder),
            "--heldout",
            str(BUNDLE / "heldout"),
        ]
    else:
        script = [str(SMOLLM2 / "recipe/evaluate.py"), "--target", str(target), "--drafters", str(folder)]
        script += ["--heldout", str(SMOLLM2 / "heldout")]
    command = [*script, "--only", family, "--device", args.device, "--out", str(made)]
    return Job(name=f"evaluate-{family}-{drafter.name}", command=tuple(command), made=made, needs=(weights,))


def run(jobs: list[Job], args: argparse.Namespace) -> list[str]:
    """Run the jobs, each on the GPU with the fewest; return the names of those that are not done at the time limit."""
    gpus = args.gpus or range(max(count_gpus(), 1))
    until = time.monotonic() + 60 * args.minutes
    collect_at = time.monotonic()
    running: dict[Job, tuple[subprocess.Popen[bytes], int, float]] = {}
    failures: Counter[Job] = Counter()
    while time.monotonic() < until:
        for job, (process, _, started) in list(running.items()):
            if process.poll() is not None:
                del running[job]
                failures[job] += process.returncode != 0
                say(f"{job.name}: {'failed' if process.returncode else 'done'} in {time.monotonic() - started:.0f} s")
                collect(args)
        waiting = [job for job in jobs if not job.made.exists() and job not in running and failures[job] < TRIES]
        for job in waiting:
            if all(each.exists() for each in job.needs):
                busy = [gpu for _, gpu, _ in running.values()]
                gpu = min(gpus, key=busy.count)
                running[job] = (start(job, gpu, args.work), gpu, time.monotonic())
                say(f"{job.name}: started on GPU {gpu}")
        if not running:
            break
        if time.monotonic() > collect_at:
            collect(args)
            collect_at = time.monotonic() + 20
        time.sleep(0.5)
    for process, _, _ in running.values():
        process.send_signal(signal.SIGTERM)
    for process, _, _ in running.values():
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    return [job.name for job in jobs if not job.made.exists()]


def start(job: Job, gpu: int, work: Path) -> subprocess.Popen[bytes]:
    paths = [str(ROOT / "src"), str(BUNDLE / "recipe"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with (work / f"{job.name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *job.command], stdout=log, stderr=log, env=environment)


def count_gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout.splitlines())


def collect(args: argparse.Namespace) -> None:
    """Copy the weights that are there and not yet copied, and pack what is small."""
    for folder in sorted(folder for family in SHAPES for folder in (args.work / family).glob("*")):
        made, checkpoint = folder / "model.safetensors", folder / "training/checkpoint.pt"
        kept = args.out / f"{folder.parent.name}-{folder.name}.safetensors"
        partial = kept.with_suffix(".partial.safetensors")
        if (folder / "config.json").exists():
            if not kept.exists():
                shutil.copy(made, kept)
                partial.unlink(missing_ok=True)
        elif checkpoint.exists() and is_newer(checkpoint, partial):
            network = torch.load(checkpoint, map_location="cpu", weights_only=True)["network"]
            save_file({name: each.bfloat16().contiguous() for name, each in network.items()}, partial)
    packed = args.work / "rest.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for file in sorted(args.work.rglob("*")):
            small = file.suffix in (".log", ".json") or file.name == "log.jsonl"
            if small and "evaluated" not in file.parts and not file.is_symlink():
                archive.add(file, file.relative_to(args.work))
    shutil.copy(packed, args.out)


def is_newer(file: Path, than: Path) -> bool:
    return not than.exists() or file.stat().st_mtime > than.stat().st_mtime


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    main()
