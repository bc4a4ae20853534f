#!/usr/bin/env bash
# Speed of training eagle3 for an 8B target, beside speculators' own trainer: train_speed.sh OUT_DIR, about six minutes on
# two GPUs and as long on one. The wheels of speculators_trainer.py must be on PYTHONPATH. A row that is there is not
# measured again.
set -u
out=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

# measure NAME SECONDS LAUNCHER OPTIONS...: one row into NAME.jsonl, in at most that time
measure() {
  local name=$1 seconds=$2 launcher=$3
  shift 3
  [ -s "$out/$name.jsonl" ] && return
  timeout "$seconds" $launcher "$here/train_speed.py" --methods eagle3 --out "$out/$name.jsonl" "$@" \
    >"$out/$name.log" 2>&1 || echo "$name ended with $?: $(tail -n 3 "$out/$name.log")"
  cat "$out/$name.jsonl" 2>/dev/null
}
one="python3"
two="python3 -m torch.distributed.run --standalone --nproc-per-node 2"
ours="--steps 40 --skip 10"
peer="--steps 25 --skip 10 --peer speculators --optimizer muon"

# One GPU, one after the other; --shard there shows that it works, not what it gains.
if [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then
  measure one-speculators 220 "$one" $peer
  [ -s "$out/one-speculators.jsonl" ] || measure one-speculators-attention 100 "$one" $peer --compile attention
  measure one-ours 90 "$one" $ours --states given --optimizer muon
  measure one-ours-shard 60 "${two% 2} 1" $ours --shard
  exit
fi

# One GPU each, at the same time.
CUDA_VISIBLE_DEVICES=0 measure one-ours 170 "$one" $ours --states given --optimizer muon &
CUDA_VISIBLE_DEVICES=1 measure one-speculators 170 "$one" $peer &
wait
# Both GPUs, one after the other.
measure two-speculators 170 "$two" $peer
measure two-ours 170 "$two" $ours --states given --optimizer muon
measure two-ours-shard 170 "$two" $ours --shard
CUDA_VISIBLE_DEVICES=0 measure one-ours-target 170 "$one" $ours --optimizer muon &
CUDA_VISIBLE_DEVICES=1 measure one-ours-adamw 170 "$one" $ours --states given --optimizer adamw &
wait
