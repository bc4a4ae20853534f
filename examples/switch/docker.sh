#!/usr/bin/env bash
# Replaces a container of vLLM: VARIANT.args has its arguments, one a line, so JSON needs no quotes around it.
set -euo pipefail
variant=${1:?give a variant, such as plain}
[ -f "$variant.args" ] || { echo "No file $variant.args in $PWD." >&2; exit 2; }
: "${IMAGE:?set IMAGE to the image that serves, such as vllm/vllm-openai:v0.33.0}"
name=${NAME:-vllm}
mapfile -t arguments < <(grep -v '^[[:space:]]*$' "$variant.args")
read -r -a options <<< "${DOCKER_ARGS:---gpus all --ipc host}"

docker rm --force "$name" > /dev/null 2>&1 || true # the first time there is none
exec docker run --detach --name "$name" --publish "127.0.0.1:${PORT:-8000}:8000" "${options[@]}" "$IMAGE" "${arguments[@]}"
