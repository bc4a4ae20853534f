#!/usr/bin/env bash
# Speed of training eagle3 for an 8B target, beside speculators' own trainer: train_speed.sh OUT_DIR, on two GPUs, about
# six minutes. The wheels of speculators_trainer.py must be on PYTHONPATH. A row that is there is not measured again.
set -u
out=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

# measure NAME LAUNCHER OPTIONS...: one row into NAME.jsonl, at most 170 s
measure() {
  local name=$1 launcher=$2
  shift 2
  [ -s "$out/$name.jsonl" ] && return
  timeout 170 $launcher "$here/train_speed.py" --methods eagle3 --steps 40 --skip 10 --out "$out/$name.jsonl" "$@" \
    >"$out/$name.log" 2>&1 || echo "$name ended with $?: $(tail -n 3 "$out/$name.log")"
  cat "$out/$name.jsonl" 2>/dev/null
}
one="python3"
two="python3 -m torch.distributed.run --standalone --nproc-per-node 2"

# One GPU each, at the same time.
CUDA_VISIBLE_DEVICES=0 measure one-ours "$one" --states given --optimizer muon &
CUDA_VISIBLE_DEVICES=1 measure one-speculators "$one" --peer speculators --optimizer muon &
wait
# Both GPUs, one after the other.
measure two-speculators "$two" --peer speculators --optimizer muon
measure two-ours "$two" --states given --optimizer muon
measure two-ours-shard "$two" --shard
CUDA_VISIBLE_DEVICES=0 measure one-ours-target "$one" --optimizer muon &
CUDA_VISIBLE_DEVICES=1 measure one-ours-adamw "$one" --states given --optimizer adamw &
wait
